# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs a shell command just before a task starts on a host, while the playbook waits: `kill -KILL 0` is then the death of the controller.

TESTS_BEFORE_TASK holds the commands by task name, as JSON; a command sees the host's name in HOST.
"""

from __future__ import annotations

import json
import os
import subprocess

from ansible.plugins.callback import CallbackBase


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "before_task"

    def v2_runner_on_start(self, host, task):
        command = json.loads(os.environ.get("TESTS_BEFORE_TASK", "{}")).get(task.name)
        if command:
            subprocess.run(command, shell=True, check=True, env={**os.environ, "HOST": host.name})

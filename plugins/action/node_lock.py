# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from typing import Any, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._kube.argspec import CONNECTION_SPEC
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.argspec import LEDGER_SPEC
from ansible_collections.gpuops.remediation.plugins.modules import node_lock
from ansible_collections.gpuops.remediation.plugins.plugin_utils._controller_action import ControllerAction


class ActionModule(ControllerAction):
    """The file's lock is on the node, which learns nothing of ledger and cluster; the others are where the controller reaches them."""

    module = node_lock

    def run(self, tmp: Optional[str] = None, task_vars: Optional[dict[str, Any]] = None) -> dict[str, Any]:
        if self._task.args.get("backend", "file") == "file":
            arguments = {name: value for name, value in self._task.args.items() if name not in (*CONNECTION_SPEC, *LEDGER_SPEC)}
            answer: dict[str, Any] = self._execute_module(module_args=arguments, task_vars=task_vars)
            return answer
        return super().run(tmp, task_vars)

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from typing import Any, Optional

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    """The module itself, on the node. A node that stops answering fails the task like anything else, so that its incident still ends."""

    _supports_check_mode = True

    def run(self, tmp: Optional[str] = None, task_vars: Optional[dict[str, Any]] = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        try:
            result.update(self._execute_module(task_vars=task_vars))
        except AnsibleConnectionFailure as error:
            result.update(failed=True, error_kind="node_silent", msg=f"the node does not answer: {error}")
        return result

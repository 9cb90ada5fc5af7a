# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Modules that work on the controller run in its own process.

Whatever a node needs in its 720 seconds, it needs from the ledger and the orchestrator's API, some twenty times. As modules these calls
would each be packed, started in a new Python and import SQLAlchemy or the Kubernetes client again: a second of CPU a call. Ansible loads an
action plugin before it forks its workers, so here the libraries are there already.
"""

from __future__ import annotations

import traceback
from types import ModuleType
from typing import Any, Optional

from ansible.plugins.action import ActionBase
from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger import store  # noqa: F401 # loaded before the workers are forked


class ControllerAction(ActionBase):
    """Runs `module`, whose SPEC and run() the module of the same name has too; it needs no connection and no delegation."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    module: ModuleType

    def run(self, tmp: Optional[str] = None, task_vars: Optional[dict[str, Any]] = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        params = self.validate_argument_spec(**self.module.SPEC)[1]
        try:
            result.update(self.module.run(params, self._task.check_mode))
        except RemediationError as error:
            result.update(failed=True, **error.failure())
        except Exception as error:  # what nobody expected must name its place, as it would in a module
            result.update(failed=True, msg=f"{type(error).__name__}: {error}", exception=traceback.format_exc())
        return result

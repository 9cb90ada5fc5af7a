# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Builds the program on the controller, and leaves the rest to Ansible's copy: it compares, and knows check mode and become."""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import Any, Optional

from ansible import constants
from ansible.plugins.action import ActionBase
from ansible_collections.gpuops.remediation.plugins.module_utils import _program
from ansible_collections.gpuops.remediation.plugins.module_utils._exporter import program

SPEC = {
    "argument_spec": {
        "dest": {"type": "path", "required": True},
        "python": {"type": "path", "default": "/usr/bin/python3"},
    },
}
LIBRARIES = {"prometheus_client": "prometheus-client", "pynvml": "nvidia-ml-py"}  # by module, the package to install


def missing(error: ImportError) -> str:
    """Not every error names what it lacks."""
    package = LIBRARIES.get(error.name or "", error.name)
    return f"the controller's Python has no {package}: {error}" if package else f"the program cannot be made: {error}"


class ActionModule(ActionBase):
    TRANSFERS_FILES = True
    _supports_check_mode = True

    def run(self, tmp: Optional[str] = None, task_vars: Optional[dict[str, Any]] = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        params = self.validate_argument_spec(**SPEC)[1]
        try:
            data = _program.build(program.__name__, f"{params['python']} -I", tuple(LIBRARIES))
        except ImportError as error:
            result.update(failed=True, error_kind="missing_library", msg=missing(error))
            return result
        folder = tempfile.mkdtemp(dir=constants.DEFAULT_LOCAL_TMP)
        try:
            path = os.path.join(folder, os.path.basename(params["dest"]))
            with open(path, "wb") as file:
                file.write(data)
            result.update(self._copy(path, params["dest"], task_vars))
        finally:
            shutil.rmtree(folder)
        return result

    def _copy(self, path: str, dest: str, task_vars: Optional[dict[str, Any]]) -> dict[str, Any]:
        task = self._task.copy()
        task.args = {"src": path, "dest": dest, "owner": "root", "group": "root", "mode": "0755"}
        copy = self._shared_loader_obj.action_loader.get(
            "ansible.legacy.copy",
            task=task,
            connection=self._connection,
            play_context=self._play_context,
            loader=self._loader,
            templar=self._templar,
            shared_loader_obj=self._shared_loader_obj,
        )
        found: dict[str, Any] = copy.run(task_vars=task_vars)
        return found

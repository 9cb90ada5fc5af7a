# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""mps_info's answer: every daemon that is known of, and of one that does not answer, why."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.remediation.plugins.module_utils._mps import clients, state
from ansible_collections.gpuops.remediation.plugins.module_utils._mps.control import DEFAULT_PIPES, Control, find_program
from ansible_collections.gpuops.remediation.plugins.module_utils._mps.errors import MpsError, NoDaemon
from ansible_collections.gpuops.remediation.plugins.module_utils._mps.terminated import Terminated
from ansible_collections.gpuops.remediation.plugins.module_utils._mps.units import RUNTIME
from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import ProcFs
from ansible_collections.gpuops.remediation.plugins.module_utils._node.statedir import StateDir


def read(params: Mapping[str, Any]) -> list[dict[str, Any]]:
    given = params["pipe_directories"]
    folders = known() if given is None else given
    program = find_program(params["mps_control"]) if folders else ""
    proc = ProcFs(params["proc_root"])
    terminated = Terminated(StateDir(params["state_dir"]), proc)
    return [_read_one(Control(program, folder, params["control_timeout_seconds"]), proc, terminated) for folder in folders]


def known() -> list[str]:
    """A folder is there before its daemon and may outlive it."""
    ours = sorted(str(path) for path in Path(RUNTIME).glob("*") if path.is_dir())
    return [*ours, *([DEFAULT_PIPES] if Path(DEFAULT_PIPES, "control").exists() else [])]


def _read_one(control: Control, proc: ProcFs, terminated: Terminated) -> dict[str, Any]:
    answer: dict[str, Any] = {"pipe_directory": control.pipe_directory, "error": None, "defaults": {}, "servers": []}
    try:
        daemon = state.read(control)
        if not daemon.running:
            raise NoDaemon(f"no MPS control daemon answers in {control.pipe_directory}")
        listed = clients.read(control, proc, terminated)
    except MpsError as error:
        return {**answer, "error": error.failure()}
    shown = daemon.show()
    answer["defaults"] = shown["defaults"]
    answer["servers"] = [
        {**server, "clients": [one.show() for one in listed.clients if one.server == server["pid"]]} for server in shown["servers"]
    ]
    return answer

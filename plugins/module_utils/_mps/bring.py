# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""mps_daemon's work: the unit's files, then the daemon."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Callable, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils import _program
from ansible_collections.gpuops.remediation.plugins.module_utils._converge import Outcome, converge
from ansible_collections.gpuops.remediation.plugins.module_utils._mps import daemon, device, limits, program, units
from ansible_collections.gpuops.remediation.plugins.module_utils._mps.control import Control, find_program
from ansible_collections.gpuops.remediation.plugins.module_utils._mps.errors import BadValue
from ansible_collections.gpuops.remediation.plugins.module_utils._node.boot_files import BootFiles, Files, document
from ansible_collections.gpuops.remediation.plugins.module_utils._node.journal import Journal
from ansible_collections.gpuops.remediation.plugins.module_utils._node.lock import guard
from ansible_collections.gpuops.remediation.plugins.module_utils._node.node import Node

_NVML_SECONDS = 10.0
_MODES = {"program": 0o755, "unit": 0o644, "env": 0o644, "json": 0o644}


@dataclass(frozen=True)
class Places:
    """By what they are; `link` makes systemd start the instance at boot."""

    program: str
    unit: str
    env: str
    json: str
    link: str

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> Places:
        stem = os.path.join(params["config_dir"], params["device"])
        folder = params["unit_dir"]
        link = os.path.join(folder, "multi-user.target.wants", units.unit_of(params["device"]))
        return cls(params["program"], os.path.join(folder, units.TEMPLATE), f"{stem}.env", f"{stem}.json", link)

    def modes(self, *names: str) -> dict[str, int]:
        return {getattr(self, name): _MODES[name] for name in names}


def bring(params: Mapping[str, Any], check_mode: bool) -> dict[str, Any]:
    uuid = device.require_uuid(params["device"])
    present = params["state"] == "present"
    ours = params["managed_by"] == "systemd"
    _refuse_mixed(params, present, ours)
    node = Node.from_params(params)
    keep_lock = guard(node, params, check_mode=check_mode)
    found = device.read(node, uuid, _NVML_SECONDS) if present else None
    settings, tenant = limits.settings_of(params, found.memory_mib) if found else ({}, None)
    mode = device.ComputeMode(node, found, _NVML_SECONDS) if found else None
    control = Control(
        find_program(params["mps_control"]),
        params["pipe_directory"] or os.path.join(units.RUNTIME, uuid),
        params["control_timeout_seconds"],
    )
    manager = units.Units() if ours else None
    want = daemon.Want(present, uuid, settings, units.unit_of(uuid) if ours else None, params["compute_mode"])
    task = daemon.DaemonTask(want, control, mode, manager, Journal.from_params(node, params), keep_lock)
    if ours and present:
        task.plan(task.read())  # what is refused is refused before a file is written
    files = _files(params, control, settings, keep_lock) if ours else None
    written = files(check_mode) if files and present else None
    outcome = converge(task.read, task.plan, task.predict, task.apply, check_mode=check_mode)
    removed = files(check_mode) if files and not present else None
    return _result(outcome, written or removed, tenant, bool(manager and want.unit and manager.read(want.unit).needs_reload))


def _refuse_mixed(params: Mapping[str, Any], present: bool, ours: bool) -> None:
    if ours and params["pipe_directory"]:
        raise BadValue("pipe_directory: the unit's daemon has its own, below " + units.RUNTIME)
    if not ours and not present:
        raise BadValue("state=absent: a daemon that others manage is theirs to end")


def _files(params: Mapping[str, Any], control: Control, settings: limits.Settings, keep_lock: Callable[[], None]) -> Callable[[bool], Any]:
    """What brings the files to what is wanted, in check mode or not."""
    places = Places.of(params)
    if params["state"] == "absent":
        # The template and the program may be another device's too
        gone: Files = dict.fromkeys((places.env, places.json))
        return lambda check_mode: _with_link(
            places, BootFiles(places.modes("env", "json"), keep_lock).bring(gone, check_mode=check_mode), False, check_mode
        )
    config = {
        "mps_control": control.program,
        "pipe_directory": control.pipe_directory,
        "device": params["device"],
        "settings": dict(settings),
    }
    wanted: Files = {
        places.program: _program.build(program.__name__, f"{sys.executable} -I"),
        places.unit: units.unit_text(control.program, places.program, params["config_dir"]).encode(),
        places.env: units.variables(params["device"], control.pipe_directory, os.path.join(units.LOGS, params["device"])),
        places.json: document(config),
    }
    return lambda check_mode: _with_link(
        places, BootFiles(places.modes("program", "unit", "env", "json"), keep_lock).bring(wanted, check_mode=check_mode), True, check_mode
    )


def _with_link(places: Places, outcome: Outcome[Files], wanted: bool, check_mode: bool) -> list[dict[str, Any]]:
    """The actions. By a link of ours, since `systemctl enable` reloads."""
    actions = [{"action": step.action, "target": step.target, "before": step.before, "after": step.after} for step in outcome.steps]
    have = os.path.islink(places.link)
    if have != wanted:
        actions.append({"action": "enable" if wanted else "disable", "target": places.link, "before": have, "after": wanted})
        if not check_mode and wanted:
            os.makedirs(os.path.dirname(places.link), mode=0o755, exist_ok=True)
            os.symlink(places.unit, places.link)
        elif not check_mode:
            os.unlink(places.link)
    return actions


def _result(
    outcome: Outcome[daemon.State], files: Optional[list[dict[str, Any]]], tenant: Optional[limits.Tenant], reload_pending: bool
) -> dict[str, Any]:
    result = outcome.result(daemon.State.show)
    return {
        **result,
        "changed": result["changed"] or bool(files),
        "actions": [*(files or []), *result["actions"]],
        "seen_by": daemon.seen_by(outcome.steps, outcome.before),
        "tenant": tenant.report(len(outcome.after.daemon.clients)) if tenant else None,
        "reload_pending": reload_pending,
    }

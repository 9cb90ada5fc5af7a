# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Alerts whose text is a template (S1), and the ansible-cores that may not take it for one."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from loop import REPOSITORY, Controller

CORES: dict[str, tuple[Path, dict[str, str]]] = {
    "usual": (Path(sys.executable).parent, {}),
    "oldest": (Path(sys.executable).parent, {"PYTHONPATH": str(REPOSITORY / ".ansible" / "oldest-core")}),
    "newest": (REPOSITORY / ".ansible" / "newest" / "bin", {}),
}
_OURS = ("version", "node", "gpu_uuid", "gpu", "xid", "status", "startsAt", "endsAt", "fingerprint")


@contextmanager
def controller_of(core: str, directory: Path) -> Iterator[Controller]:
    """Its programs are those of an ansible-core; skips where this machine has none."""
    programs, environment = CORES[core]
    if not (programs / "ansible-playbook").exists():
        pytest.skip("this machine's Python is too old for the newest ansible-core")
    with Controller(directory) as made:
        made.programs, made.more_environment = programs, environment
        yield made


def touching(file: Path) -> str:
    """A template that leaves a file where it is executed."""
    return f"{{{{ lookup('pipe', 'touch {file}') }}}}"


def poisoned(message: Mapping[str, Any], canary: str) -> dict[str, Any]:
    """The canary in every text of a message, and as a field and a label of its own; what makes its alerts ours is spared."""
    ours = _replaced(message, canary, _OURS)
    for alert in ours["alerts"]:
        alert[canary] = alert["labels"][canary] = canary
    return {**ours, "status": canary, canary: canary}


def with_one_to_hold(message: Mapping[str, Any], canary: str) -> dict[str, Any]:
    """And once more with nothing spared: it is nobody's alert."""
    return {**poisoned(message, canary), "alerts": poisoned(message, canary)["alerts"] + _replaced(message["alerts"], canary, ())}


def _replaced(value: Any, canary: str, spared: Collection[str]) -> Any:
    if isinstance(value, dict):
        return {name: inner if name in spared else _replaced(inner, canary, spared) for name, inner in value.items()}
    if isinstance(value, list):
        return [_replaced(inner, canary, spared) for inner in value]
    return canary if isinstance(value, str) else value

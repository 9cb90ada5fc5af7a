# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Processes of simulated nodes: real ones, in cgroups of ours, with the simulated GPU's device file open."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

from .state import start_ticks


def cgroup_root() -> Path:
    """Where cgroup v2 is mounted (/sys/fs/cgroup, or beside v1 on a hybrid machine)."""
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        before, _separator, after = line.partition(" - ")
        if after.split()[0] == "cgroup2":
            return Path(before.split()[4])
    raise RuntimeError("cgroup v2 is not mounted on this machine: mount -t cgroup2 none /sys/fs/cgroup/unified")


def start(program: Path, cgroup: Path, ends: str, devices: Iterable[Path]) -> tuple[int, int]:
    """Start a holder; returns its pid and its supervisor's (0: it has none) once the devices are open."""
    cgroup.mkdir(parents=True, exist_ok=True)
    command = [str(program), str(cgroup / "cgroup.procs"), ends, *map(str, devices)]
    # From the root, and with nothing of ours open: it outlives us, and must not keep a terminal or a pipe of our caller busy.
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, cwd="/")
    if done.returncode:
        raise RuntimeError(f"could not start {program.name}: {done.stderr.strip()}")
    pid, supervisor = done.stdout.split()
    return int(pid), int(supervisor)


def terminate(process: dict) -> None:  # type: ignore[type-arg]
    """What a kubelet or a user does first: SIGTERM."""
    _signal(process["pid"], process["start_ticks"], signal.SIGTERM)


def end(processes: Iterable[dict], seconds: float = 10) -> None:  # type: ignore[type-arg]
    """End them whatever they are, and wait until they are gone."""
    processes = list(processes)
    for process in processes:
        with contextlib.suppress(FileNotFoundError):
            Path(process["cgroup_path"], "cgroup.freeze").write_text("0", encoding="ascii")
        _signal(process["pid"], process["start_ticks"], signal.SIGKILL)
        if process["supervisor"]:
            _signal(process["supervisor"], process["supervisor_ticks"], signal.SIGKILL)
    until = time.monotonic() + seconds
    for process in processes:
        while start_ticks(process["pid"]) == process["start_ticks"]:
            if time.monotonic() > until:
                raise RuntimeError(f"process {process['pid']} ({process['name']}) does not end")
            time.sleep(0.01)


def _signal(pid: int, ticks: int, number: int) -> None:
    """Signal a process by pid and start time: never another one that has its number now."""
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        try:
            if start_ticks(pid) == ticks:
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


def remove_cgroups(leaf: Path, top: Path, seconds: float = 1) -> None:
    """Remove an empty cgroup and its empty parents below `top`; one that is in use stays, and so do its parents."""
    until = time.monotonic() + seconds
    while leaf != top and top in leaf.parents:
        try:
            leaf.rmdir()
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno not in (errno.EBUSY, errno.ENOTEMPTY):
                raise
            if next(leaf.glob("*/"), None) or _processes(leaf) or time.monotonic() > until:
                return
            time.sleep(0.01)  # it stays busy for a moment after its last process
            continue
        leaf = leaf.parent


def _processes(cgroup: Path) -> list[str]:
    return (cgroup / "cgroup.procs").read_text(encoding="ascii").split()


def remove_tree(top: Path, seconds: float = 5) -> None:
    """Remove a cgroup with all below it; it must have no processes (any more)."""
    until = time.monotonic() + seconds
    for path in [*sorted(top.rglob("*/"), reverse=True), top]:
        while path.is_dir():
            try:
                path.rmdir()
            except OSError as error:
                if error.errno != errno.EBUSY or time.monotonic() > until:
                    raise RuntimeError(f"cgroup {path} cannot be removed: it holds {_processes(path)}") from error
                time.sleep(0.01)

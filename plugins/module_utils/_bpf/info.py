# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""What is attached, since when, what it has cost, and what it has counted."""

from __future__ import annotations

import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.remediation.plugins.module_utils._bpf import irqs, kernel, launches, mappings, memory, xids
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.callers import is_alive
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.errors import NotPermitted, ProbeError
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.launches import Launches
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.layout import KINDS, Account, Usage
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.mappings import VmCalls
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.maps import info
from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import ProcFs, isoformat

_PLACES = ("container", "unit", "cgroup")
_PCI = Path("/sys/bus/pci/devices")
_RUN_TIME_AT = 192  # in struct bpf_prog_info: run_time_ns, run_cnt, recursion_misses


@dataclass(frozen=True)
class Program:
    """The first two are None where the kernel keeps no statistics (kernel.bpf_stats_enabled).

    `misses` were not run, since another program was running on that CPU.
    """

    run_time_ns: int | None
    runs: int | None
    misses: int


def describe(bpffs_dir: str, probe: str, proc: ProcFs) -> dict[str, Any]:
    folder = Path(bpffs_dir) / probe
    try:
        names = sorted(os.listdir(folder / "links"))
    except FileNotFoundError:
        names = []
    try:
        links = [_link(folder / "links" / name) for name in names]
        return {"attached": bool(links), "links": links, **(_READERS[probe](folder / "maps", proc) if names else {})}
    except PermissionError as error:
        raise NotPermitted(f"cannot read {error.filename or folder}: {error.strerror}") from error
    except FileNotFoundError as error:
        raise ProbeError(
            f"{error.filename} is missing: another run is changing the probes, or did not end; run ebpf_probe again"
        ) from error


def _link(pin: Path) -> dict[str, Any]:
    link, program = kernel.link_ids(str(pin))
    return {"name": pin.name, "id": link, "since": isoformat(pin.stat().st_mtime), **vars(_program(program))}


def _program(number: int) -> Program:
    fd = kernel.program_by_id(number)
    try:
        run_time, runs, misses = struct.unpack_from("=3Q", info(fd, 216), _RUN_TIME_AT)
    finally:
        os.close(fd)
    return Program(run_time or None, runs or None, misses)


def _memory(maps: Path, proc: ProcFs) -> dict[str, Any]:
    accounts = memory.accounts(maps)
    processes = [_process(*key, each, proc) for key, each in sorted(memory.processes(accounts).items())]
    containers = {each["container"]["id"]: each["container"] for each in processes if each["container"]}
    return {
        "counters": memory.counters(maps),
        "failures": memory.failures(maps),
        "processes": processes,
        "containers": [{**container, **_sum(processes, identifier)} for identifier, container in sorted(containers.items())],
        "cgroups": [{"ids": vars(ids), **vars(usage)} for ids, usage in memory.cgroups(maps).items()],
    }


def _sum(processes: list[dict[str, Any]], container: str) -> dict[str, Any]:
    its = [each for each in processes if each["container"] and each["container"]["id"] == container]
    held = {kind: sum(each["held_bytes"][kind] for each in its) for kind in KINDS}
    return {"pids": [each["pid"] for each in its], "held_bytes": held}


def _xids(maps: Path, proc: ProcFs) -> dict[str, Any]:
    """Times by the clock, which the kernel's programs cannot read."""
    boot_ns = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    def at(boottime_ns: int) -> str:
        return isoformat((boot_ns + boottime_ns) / 1e9)

    return {
        "counters": xids.counters(maps),
        "xids": [
            {
                "pci_bus_id": each.pci_bus_id,
                "xid": each.xid,
                "count": each.count,
                "lines": each.lines,
                "traces": each.traces,
                "first": at(each.first_boottime_ns),
                "last": at(each.last_boottime_ns),
            }
            for each in xids.counts(maps)
        ],
        "events": [
            {
                "number": each.number,
                "time": at(each.boottime_ns),
                "pci_bus_id": each.pci_bus_id,
                "xid": each.xid,
                "source": each.source,
                "text": each.text,
            }
            for each in xids.events(maps)
        ],
    }


def _irqs(maps: Path, proc: ProcFs) -> dict[str, Any]:
    devices = irqs.devices(_PCI)
    return {
        "counters": irqs.counters(maps),
        "irqs": [
            {
                "irq": line.irq,
                "handler": line.handler,
                "pci_bus_id": devices.get(line.irq),
                "unhandled": line.unhandled,
                "woken": line.woken,
                **line.durations.show(),
            }
            for line in irqs.lines(maps)
        ],
    }


def _launches(maps: Path, proc: ProcFs) -> dict[str, Any]:
    return {"counters": launches.counters(maps), "launches": [_launched(each, proc) for each in launches.launches(maps)]}


def _launched(each: Launches, proc: ProcFs) -> dict[str, Any]:
    return {**_caller(each, proc), "kind": each.kind.name.lower(), "failed": each.failed, **each.durations.show()}


def _vm(maps: Path, proc: ProcFs) -> dict[str, Any]:
    return {"counters": mappings.counters(maps), "calls": [_called(each, proc) for each in mappings.calls(maps)]}


def _called(each: VmCalls, proc: ProcFs) -> dict[str, Any]:
    what = {"call": each.call.name.lower(), "device": each.device, "failed": each.failed, "mapped_bytes": each.mapped_bytes}
    return {**_caller(each, proc), **what, **each.durations.show()}


def _caller(each: Launches | VmCalls, proc: ProcFs) -> dict[str, Any]:
    """Of a process that has ended since the last sweep only what the kernel's programs saw of it."""
    living = is_alive(each.tgid, each.start_boottime_ns, proc)
    record = proc.describe(each.tgid) if living else dict.fromkeys(_PLACES)
    return {
        "pid": each.tgid,
        "ns_pid": each.ns_tgid,
        "comm": each.comm,
        "started_boottime_ns": each.start_boottime_ns,
        "living": living,
        "cgroup_ids": vars(each.cgroup),
        **{name: record[name] for name in _PLACES},
    }


def _process(pid: int, start_boottime_ns: int, accounts: list[Account], proc: ProcFs) -> dict[str, Any]:
    return {
        "pid": pid,
        "ns_pid": accounts[0].ns_tgid,
        "comm": accounts[0].comm,
        "started_boottime_ns": start_boottime_ns,
        "cgroups": [vars(ids) for ids in {account.cgroup for account in accounts}],
        **vars(Usage.sum(account.usage for account in accounts)),
        **{name: proc.describe(pid)[name] for name in _PLACES},
    }


_READERS = {"cuda_mem": _memory, "cuda_launch": _launches, "gpu_irq": _irqs, "gpu_vm": _vm, "gpu_xid": _xids}

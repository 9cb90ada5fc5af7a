# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Which programs there are, where each is attached, and how the links of a set are named. Nothing is attached here."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.functions import COOKIES
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.launches import LAUNCH_COOKIES
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.libraries import Copy
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.objects import OBJECTS

ENTER, LEAVE = "enter", "leave"
DRIVER_TRACEPOINT = "nvidia_dev_xid"  # of drivers since 575.51.02, with the open kernel modules

_FILE = re.compile(r"[0-9a-f]+_(\d+-\d+)-(\d+)-")


@dataclass(frozen=True)
class Probe:
    """`tracepoints`: by program, a raw one or, with a slash, one of a system call.

    `cookies`: by function of libcuda, whose entry runs `enter` and whose return runs `leave`.
    """

    name: str
    maps: tuple[str, ...]
    tracepoints: Mapping[str, str]
    cookies: Mapping[str, int] = field(default_factory=dict)

    @property
    def image(self) -> bytes:
        return zlib.decompress(base64.b64decode(OBJECTS[self.name]))

    @property
    def digest(self) -> str:
        """Of everything that a link depends on, but the file that it is attached to."""
        what = json.dumps([self.name, sorted(self.tracepoints.items()), sorted(self.cookies.items())]).encode()
        return hashlib.sha256(self.image + what).hexdigest()[:12]


PROBES = {
    "cuda_mem": Probe(
        "cuda_mem",
        ("accounts", "calls", "cgroups", "counters", "failures", "primaries", "processes", "records", "threads"),
        {"on_exit": "sched_process_exit", "on_exec": "sched_process_exec"},
        COOKIES,
    ),
    "cuda_launch": Probe("cuda_launch", ("launch_calls", "launch_counters", "launches"), {}, LAUNCH_COOKIES),
    "gpu_irq": Probe("gpu_irq", ("irq_counters", "irq_running", "irqs"), {"on_entry": "irq_handler_entry", "on_exit": "irq_handler_exit"}),
    "gpu_vm": Probe(
        "gpu_vm",
        ("vm_calls", "vm_counters", "vm_waiting"),
        {
            "enter_ioctl": "syscalls/sys_enter_ioctl",
            "enter_mmap": "syscalls/sys_enter_mmap",
            "leave_ioctl": "syscalls/sys_exit_ioctl",
            "leave_mmap": "syscalls/sys_exit_mmap",
        },
    ),
    "gpu_xid": Probe("gpu_xid", ("events", "xid_counters", "xids"), {"on_console": "console", "on_xid": DRIVER_TRACEPOINT}),
}


FUNCTIONS = tuple(sorted({name for probe in PROBES.values() for name in probe.cookies}))

# Whoever asks for none by name has these; the others cost more than most nodes want to pay.
BY_DEFAULT = ("cuda_mem", "gpu_irq", "gpu_xid")


def named(probes: Sequence[str] | None, state: str) -> list[str]:
    """What goes is all of it, whoever wanted it once."""
    return list(PROBES if state == "absent" else BY_DEFAULT) if probes is None else list(probes)


@dataclass(frozen=True)
class Link:
    """A link that shall be: a tracepoint, all functions of a copy, or one of them."""

    name: str
    program: str
    tracepoint: str | None = None
    copy: Copy | None = None
    functions: tuple[str, ...] = ()

    @property
    def target(self) -> str:
        if self.copy is None:
            return f"tracepoint {self.tracepoint}"
        return (
            f"{self.program} of {self.functions[0] if len(self.functions) == 1 else f'{len(self.functions)} functions'} in {self.copy.path}"
        )


def file_of(link: str) -> tuple[str, int] | None:
    """The device and inode by a link's name; None of a tracepoint's."""
    match = _FILE.match(link)
    return (match.group(1), int(match.group(2))) if match else None


def wanted(probe: Probe, copies: Iterable[Copy], *, multi: bool, driver_tracepoint: bool) -> dict[str, Link]:
    """In the order in which they are attached: what ends a call or a process before what begins one."""
    links = [Link(f"{probe.digest}_kernel_{program}", program, tracepoint=name) for program, name in sorted(probe.tracepoints.items())]
    links = [link for link in links if driver_tracepoint or link.tracepoint != DRIVER_TRACEPOINT]
    for copy in copies if probe.cookies else ():
        for program in (LEAVE, ENTER):
            functions = tuple(sorted(probe.cookies.keys() & copy.sites.keys()))
            groups = ([functions] if functions else []) if multi else [(function,) for function in functions]
            for group in groups:
                suffix = "" if multi else f"_{group[0]}"
                links.append(Link(f"{probe.digest}_{copy.key}_{program}{suffix}", program, copy=copy, functions=group))
    return {link.name: link for link in links}

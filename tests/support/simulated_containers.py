# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Containers of a simulated node as its /proc and cgroups have them: each is one process, with a root, an environment and namespaces of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

ALL_CAPABILITIES, FEW_CAPABILITIES = "000001ffffffffff", "00000000a80425fb"  # of a privileged container, and what Docker gives


class Containers:
    """Files below `folder`; what the node's /proc gets is links to them, as it gets for processes of the simulator."""

    def __init__(self, proc: Path, dev: Path, folder: Path) -> None:
        self.proc, self.dev, self.folder = proc, dev, folder
        self.cgroup_root = folder / "cgroup"
        self.cgroup_root.mkdir(parents=True)
        (self.cgroup_root / "cgroup.controllers").write_text("memory pids\n")
        self.process(
            1, "/init.scope", name="systemd", capabilities=ALL_CAPABILITIES, namespaces=dict.fromkeys(("mnt", "pid", "user"), "host")
        )

    def process(
        self,
        pid: int,
        cgroup: str,
        *,
        name: str = "train",
        environment: Mapping[str, str] | None = None,
        devices: Sequence[str] = (),
        opened: Sequence[str] = (),
        memory_max: str = "1073741824",
        capabilities: str = FEW_CAPABILITIES,
        namespaces: Mapping[str, str] | None = None,
        mounts: Sequence[str] = (),
    ) -> Path:
        """Its folder. `devices` are names of the node's device files that are in its /dev, `opened` those that it has open."""
        own = self.folder / "proc" / str(pid)
        for folder in ("ns", "fd", "root/dev/nvidia-caps", "root/tmp"):
            (own / folder).mkdir(parents=True)
        link = self.proc / str(pid)
        real = (link / "stat").read_text() if link.is_symlink() else None  # of the simulator's, which has to stay this very process
        (own / "stat").write_text(real or f"{pid} ({name}) S 1 {' '.join(['0'] * 17)} {pid} 0\n")
        (own / "cgroup").write_text(f"0::{cgroup}\n")
        (own / "status").write_text(f"Name:\t{name}\nCapEff:\t{capabilities}\n")
        (own / "environ").write_bytes(b"".join(f"{key}={value}\0".encode() for key, value in (environment or {}).items()))
        lines = [f"{number} 1 0:{number} / {point} rw - tmpfs none rw\n" for number, point in enumerate(["/", *mounts], 30)]
        (own / "mountinfo").write_text("".join(lines))
        for kind in ("mnt", "pid", "user"):
            (own / "ns" / kind).symlink_to(f"{kind}:[{(namespaces or {}).get(kind, 'host' if kind == 'user' else pid)}]")
        for device in devices:
            os.link(self.dev / device, own / "root/dev" / device)
        for number, device in enumerate(opened, 3):
            (own / "fd" / str(number)).symlink_to(self.dev / device)
        link.unlink(missing_ok=True)
        link.symlink_to(own)
        self._cgroup(cgroup, memory_max)
        return own

    def _cgroup(self, path: str, memory_max: str) -> None:
        folder = self.cgroup_root / path.strip("/")
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in {"cgroup.procs": "", "memory.max": f"{memory_max}\n", "memory.current": "4096\n"}.items():
            (folder / name).write_text(text)

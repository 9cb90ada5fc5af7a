# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""The copies of libcuda on a node: the host's, those in containers, and those that are mapped by processes though deleted."""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Callable

from ansible_collections.gpuops.remediation.plugins.module_utils._bpf import elf
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.entry import probe_offset
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.functions import REQUIRED

_MAPPED = re.compile(r"^\S+ \S+ \S+ \S+ \d+ +(/(?:.*/)?libcuda\.so[^/\s]*)( \(deleted\))?$", re.MULTILINE)
# Where drivers and container runtimes put it; a copy elsewhere is found once a process has it mapped.
_PLACES = (
    "usr/lib/*-linux-gnu/libcuda.so*",
    "usr/lib64/libcuda.so*",
    "usr/local/cuda*/compat/libcuda.so*",
    "run/nvidia/driver/usr/lib/*-linux-gnu/libcuda.so*",
)


@dataclass(frozen=True)
class Copy:
    """One file. `path` is where it can be opened from here; `sites` are the offsets of probes by function."""

    path: str
    device: int
    inode: int
    build_id: str
    sites: Mapping[str, int]
    pids: tuple[int, ...] = ()

    @property
    def key(self) -> str:
        """Also the build id: a file that is overwritten in place keeps its inode, and nothing is where it was."""
        return f"{os.major(self.device)}-{os.minor(self.device)}-{self.inode}-{self.build_id[:12] or 'none'}"

    @classmethod
    def read(cls, path: str, functions: Collection[str]) -> Copy:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
                library = elf.parse(data, functions)
        sites = {name: each.offset + probe_offset(library.machine, each.entry) for name, each in library.functions.items()}
        return cls(path, status.st_dev, status.st_ino, library.build_id, sites)

    @property
    def is_driver(self) -> bool:
        return all(name in self.sites for name in REQUIRED)


@dataclass(frozen=True)
class Mapped:
    """What /proc/PID/maps says: the path as that process sees it."""

    path: str
    deleted: bool


@dataclass
class Found:
    copies: list[Copy] = field(default_factory=list)
    deleted: list[dict[str, Any]] = field(default_factory=list)
    not_probed: list[dict[str, str]] = field(default_factory=list)

    def add(self, item: Mapping[str, Any]) -> None:
        """One item as `scan` emits it."""
        if "copy" in item:
            copy = Copy(**{**item["copy"], "pids": tuple(item["copy"]["pids"])})
            same = next((at for at, each in enumerate(self.copies) if each.key == copy.key), None)
            if same is None:
                self.copies.append(copy)
            else:
                self.copies[same] = replace(self.copies[same], pids=tuple(sorted({*self.copies[same].pids, *copy.pids})))
        elif "deleted" in item:
            self.deleted.append(item["deleted"])
        elif "not_probed" in item:
            self.not_probed.append(item["not_probed"])


def mapped(text: str) -> set[Mapped]:
    return {Mapped(match.group(1), bool(match.group(2))) for match in _MAPPED.finditer(text)}


def scan(proc: Path, pids: Iterable[int], functions: Collection[str], emit: Callable[[Mapping[str, Any]], None]) -> None:
    """The host's places, each mount namespace's, and what processes have mapped. Processes that end meanwhile are passed over."""
    seen: dict[tuple[int, int], Copy | None] = {}
    namespaces: set[str] = set()

    def look(path: str, *pid: int) -> None:
        try:
            status = os.stat(path)
            identity = (status.st_dev, status.st_ino)
            if identity not in seen:
                seen[identity] = None
                seen[identity] = Copy.read(path, functions)
        except (OSError, ValueError) as error:
            emit({"not_probed": {"path": path, "why": str(error)}})
            return
        copy = seen[identity]
        if copy and copy.is_driver:
            emit({"copy": asdict(replace(copy, pids=pid))})
        elif copy:
            emit({"not_probed": {"path": path, "why": f"exports no {' or '.join(REQUIRED)}"}})

    for path in _standing(Path("/")):
        look(path)
    for pid in pids:
        folder = proc / str(pid)
        try:
            maps = mapped((folder / "maps").read_text(errors="replace"))
            namespace = os.readlink(folder / "ns/mnt")
        except OSError:
            continue
        if namespace not in namespaces:
            namespaces.add(namespace)
            for path in _standing(folder / "root"):
                look(path)
        for each in sorted(maps, key=lambda one: one.path):
            if each.deleted:
                emit({"deleted": {"path": each.path, "pid": pid}})
            else:
                look(f"{folder}/root{each.path}", pid)


def _standing(root: Path) -> Iterator[str]:
    """Files only: an absolute link in a container would lead to the host's file."""
    for place in _PLACES:
        yield from (str(path) for path in sorted(root.glob(place)) if not path.is_symlink())

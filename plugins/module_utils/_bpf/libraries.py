# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""The copies of libcuda on a node: the host's, those in containers, and those that are mapped by processes though deleted."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Callable

from ansible_collections.gpuops.remediation.plugins.module_utils._bpf import elf, files
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.entry import probe_offset
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.errors import CopyChanged
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.functions import REQUIRED

_MAPPED = re.compile(r"^\S+ \S+ \S+ \S+ (\d+) +(/(?:.*/)?libcuda\.so[^/\s]*)( \(deleted\))?$")
# Where drivers and container runtimes put it; a copy elsewhere is found once a process has it mapped.
_PLACES = (
    "usr/lib/*-linux-gnu/libcuda.so*",
    "usr/lib64/libcuda.so*",
    "usr/local/cuda*/compat/libcuda.so*",
    "usr/local/nvidia/lib64/libcuda.so*",
    "home/kubernetes/bin/nvidia/lib64/libcuda.so*",
    "run/nvidia/driver/usr/lib/*-linux-gnu/libcuda.so*",
)


@dataclass(frozen=True)
class Copy:
    """One file. `path` is where it can be opened from here, below `root` or, if that is empty, wherever its links lead.

    `sites` are the offsets of probes by function.
    """

    path: str
    device: int
    inode: int
    build_id: str
    sites: Mapping[str, int]
    pids: tuple[int, ...] = ()
    root: str = ""

    @property
    def key(self) -> str:
        """Also the build id: a file that is overwritten in place keeps its inode, and nothing is where it was."""
        return f"{os.major(self.device)}-{os.minor(self.device)}-{self.inode}-{self.build_id[:12] or 'none'}"

    @classmethod
    def read(cls, path: str, functions: Collection[str], root: str = "") -> Copy:
        fd = files.open_regular(root, path[len(root) :])
        try:
            return cls.of(fd, path, functions, root)
        finally:
            os.close(fd)

    @classmethod
    def of(cls, fd: int, path: str, functions: Collection[str], root: str) -> Copy:
        status = os.fstat(fd)
        library = elf.parse(lambda offset, size: os.pread(fd, size, offset), functions)
        sites = {name: each.offset + probe_offset(library.machine, each.entry) for name, each in library.functions.items()}
        return cls(path, status.st_dev, status.st_ino, library.build_id, sites, root=root)

    def open_again(self, functions: Collection[str]) -> int:
        """A descriptor of this very file: the path may lead to another one by now, and the file may have been written to."""
        try:
            fd = files.open_regular(self.root, self.path[len(self.root) :])
        except OSError as error:
            raise CopyChanged(f"{self.path} cannot be opened any more: {error}", path=self.path) from error
        try:
            if replace(Copy.of(fd, self.path, functions, self.root), pids=self.pids) != self:
                raise CopyChanged(f"{self.path} is not the file that was found there", path=self.path)
        except (OSError, ValueError) as error:
            os.close(fd)
            raise CopyChanged(f"{self.path} cannot be read any more: {error}", path=self.path) from error
        except CopyChanged:
            os.close(fd)
            raise
        return fd

    @property
    def in_container(self) -> bool:
        """Or in another root than the host's: what is wrong with it is not the node's fault."""
        return self.root not in ("", "/")

    @property
    def is_driver(self) -> bool:
        return all(name in self.sites for name in REQUIRED)


class InVolume(ValueError):
    """Not where an image or a driver has its files."""


@dataclass(frozen=True)
class Mapped:
    """What /proc/PID/maps says: the path as that process sees it. Its device is not always the one that stat(2) tells, of an overlay or of btrfs."""

    inode: int
    path: str
    deleted: bool


@dataclass
class Found:
    """`in_use`: inodes of what was not read, though a process has it mapped or it is in a usual place."""

    copies: list[Copy] = field(default_factory=list)
    deleted: list[dict[str, Any]] = field(default_factory=list)
    not_probed: list[dict[str, str]] = field(default_factory=list)
    in_use: set[int] = field(default_factory=set)

    def keeps(self, device: str, inode: int) -> bool:
        """Whether a link to this file stays though no copy asks for it. One that was found, and overwritten in place, asks for other links."""
        here = {f"{os.major(copy.device)}-{os.minor(copy.device)}" for copy in self.copies if copy.inode == inode}
        return inode in self.in_use and device not in here

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
        elif "in_use" in item:
            self.in_use.add(item["in_use"])


def mapped(lines: Iterable[str]) -> set[Mapped]:
    found = (_MAPPED.match(line.rstrip("\n")) for line in lines)
    return {Mapped(int(match.group(1)), match.group(2), bool(match.group(3))) for match in found if match}


def scan(proc: Path, pids: Iterable[int], functions: Collection[str], emit: Callable[[Mapping[str, Any]], None]) -> None:
    """The host's places, each mount namespace's, and what processes have mapped. Processes that end meanwhile are passed over.

    Not what a container has mapped from a volume: a link would keep it busy after the container's end.
    """
    seen: dict[tuple[int, int], Copy] = {}
    namespaces: set[str] = set()
    host = _namespace(proc / "1")

    def look(root: str, path: str, *pid: int, volumes: bool = True) -> bool:
        """False of what could not be read."""
        shown = f"{root.rstrip('/')}{path}"
        try:
            fd = files.open_regular(root, path)
            try:
                status = os.fstat(fd)
                known = seen.get((status.st_dev, status.st_ino))
                if not (known or volumes) and files.mount_of(fd) != files.root_mount(root):
                    raise InVolume("in a volume, which a probe would keep busy; only libraries can name it")
                copy = known or Copy.of(fd, shown, functions, root)
            finally:
                os.close(fd)
        except (OSError, ValueError, MemoryError) as error:
            emit({"not_probed": {"path": shown, "why": str(error)}})
            inode = files.inode(root, path)
            if inode is not None:
                emit({"in_use": inode})
            return False
        seen[copy.device, copy.inode] = copy
        if copy.is_driver:
            emit({"copy": asdict(replace(copy, pids=pid))})
        else:
            emit({"not_probed": {"path": shown, "why": f"exports no {' or '.join(REQUIRED)}"}})
        return True

    for path in _standing("/"):
        look("/", path)
    for pid in pids:
        folder = proc / str(pid)
        emit({"reading": pid})
        try:
            with open(folder / "maps", errors="replace") as lines:
                maps = mapped(lines)
        except OSError:
            continue
        namespace = _namespace(folder)
        if namespace is None:
            continue
        root = f"{folder}/root"
        if namespace not in namespaces:
            namespaces.add(namespace)
            for path in _standing(root):
                look(root, path)
        for each in sorted(maps, key=lambda one: one.path):
            if each.deleted:
                emit({"deleted": {"path": each.path, "pid": pid}})
            if each.deleted or not look(root, each.path, pid, volumes=namespace == host):
                emit({"in_use": each.inode})


def _namespace(folder: Path) -> str | None:
    try:
        return os.readlink(folder / "ns/mnt")
    except OSError:
        return None


def _standing(root: str) -> Iterator[str]:
    """Not links: what they lead to is among them, or mapped by whoever uses it."""
    for place in _PLACES:
        for path in files.matching(root, place):
            try:
                if not files.is_link(root, path):
                    yield path
            except OSError:  # gone meanwhile, or the root is
                continue

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Filters of devices that stay: a link to a cgroup and the count of what it denied, pinned in a folder named by the cgroup's id.

The list is in a map that is filled and frozen before a program has it. Another list comes as another program, which the kernel puts into the link's
place by one write: every opening is judged by the old list or by the new one.
"""

from __future__ import annotations

import errno
import os
import platform
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.gpuops.remediation.plugins.module_utils._bpf import kernel
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.device_program import NAME, REST, instructions
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.errors import NotPermitted, ProbeError, Unsupported
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.maps import Map, PinnedMap, info, map_by_id, open_pin

OLDEST_KERNEL = (5, 11)  # links to cgroups that can be detached, and maps that do not count against the limit of locked memory
_MAP_CREATE, _FREEZE, _LINK_CREATE, _LINK_UPDATE, _LINK_DETACH = 0, 22, 28, 29, 34
_HASH, _READ_ONLY_FOR_PROGRAMS = 1, 1 << 7
_CGROUP_DEVICE_PROGRAM, _CGROUP_DEVICE = 15, 6
_MOST_COUNTED = 1024
_NAME_AT, _NAME_BYTES = 64, 16  # in struct bpf_prog_info
_COUNT = struct.Struct("=Q")
_KEY_BYTES = len(REST)
_READABLE, _FOLDER = 0o644, 0o755  # as those of the probes


class NotStackable(ProbeError):
    """What is attached to the cgroup already lets nothing stand beside it."""

    kind = "not_stackable"


@dataclass(frozen=True)
class Filter:
    """`current`: its program is that of this version. `denied` is by the key of the device."""

    rules: Mapping[bytes, bytes]
    current: bool
    denied: Mapping[bytes, int]


def require(bpffs_dir: str) -> None:
    """Raises unless filters can be attached here, and pinned below this folder."""
    release = platform.release()
    if kernel.version_of(release) < OLDEST_KERNEL:
        raise Unsupported(f"kernel {release} cannot keep a device filter by a link, {'.'.join(map(str, OLDEST_KERNEL))} and later can")
    kernel.require_admin("filtering devices", kernel.capabilities())
    kernel.require_bpffs(bpffs_dir)


class DeviceFilters:
    def __init__(self, bpffs_dir: str) -> None:
        self._folder = Path(bpffs_dir) / "devices"

    def ids(self) -> list[int]:
        """Of the cgroups that have one, or had, before they ended."""
        try:
            return sorted(int(name) for name in os.listdir(self._folder) if name.isdigit())
        except FileNotFoundError:
            return []

    def read(self, cgroup_id: int) -> Filter | None:
        """None where there is none, or none in force."""
        link = self._link(cgroup_id)
        if not link.exists():
            return None
        with _opened(link) as fd:
            _type, _id, program, _pad, attached_to = struct.unpack_from("=IIIIQ", info(fd, 64))
        if attached_to != cgroup_id:
            return None
        try:
            with PinnedMap(str(self._denied(cgroup_id))) as pinned:
                denied = {key: _COUNT.unpack(value)[0] for key, value in pinned.items()}
                (rules,) = kernel.program_maps(program) - {pinned.info.id}
        except FileNotFoundError as error:
            raise ProbeError(f"{error.filename} is missing beside a filter that is in force: to begin anew, remove {link}") from error
        with Map(map_by_id(rules)) as entries:
            return Filter(dict(entries.items()), _name_of(program) == NAME, denied)

    def attach(self, cgroup_id: int, cgroup: str, rules: Mapping[bytes, bytes]) -> None:
        """`cgroup` is its folder, which has to be the one of that id."""
        folder = self._link(cgroup_id).parent
        try:
            folder.mkdir(parents=True)
            for each in (self._folder.parent, self._folder, folder):
                each.chmod(_FOLDER)
        except OSError as error:
            raise ProbeError(f"cannot make {folder}: {error.strerror}") from error
        try:
            with Map(_create_map(_COUNT.size, _MOST_COUNTED, "gpuops_denied", 0)) as denied, _cgroup(cgroup, cgroup_id) as target:
                denied.put(REST, _COUNT.pack(0))
                kernel.pin(denied.fd, str(self._denied(cgroup_id)))
                self._denied(cgroup_id).chmod(_READABLE)
                with _closing(_program(rules, denied.fd)) as program, _closing(_attached(program, target, cgroup)) as link:
                    kernel.pin(link, str(self._link(cgroup_id)))
        except BaseException:
            self.remove(cgroup_id)
            raise

    def replace(self, cgroup_id: int, rules: Mapping[bytes, bytes]) -> None:
        """The counts go on."""
        with (
            _opened(self._denied(cgroup_id)) as denied,
            _closing(_program(rules, denied)) as program,
            _opened(self._link(cgroup_id)) as link,
        ):
            kernel.command(_LINK_UPDATE, struct.pack("=IIII", link, program, 0, 0), "put another program into a link's place")

    def remove(self, cgroup_id: int) -> None:
        """Detached at once: a link whose pin is removed ends some time later."""
        link = self._link(cgroup_id)
        if link.exists():
            with _opened(link) as fd:
                kernel.command(_LINK_DETACH, struct.pack("=I", fd), "detach a link")
        for pin in (link, self._denied(cgroup_id)):
            with suppress(FileNotFoundError):
                pin.unlink()
        for folder in (link.parent, self._folder, self._folder.parent):
            try:
                folder.rmdir()
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
                    raise ProbeError(f"cannot remove {folder}: {error}") from error

    def _link(self, cgroup_id: int) -> Path:
        return self._folder / str(cgroup_id) / "link"

    def _denied(self, cgroup_id: int) -> Path:
        return self._folder / str(cgroup_id) / "denied"


def _create_map(value_bytes: int, entries: int, name: str, flags: int) -> int:
    attributes = struct.pack("=7I16s", _HASH, _KEY_BYTES, value_bytes, entries, flags, 0, 0, name.encode())
    return kernel.command(_MAP_CREATE, attributes, "make a map")


def _program(rules: Mapping[bytes, bytes], denied: int) -> int:
    with Map(_create_map(4, max(len(rules), 1), "gpuops_rules", _READ_ONLY_FOR_PROGRAMS)) as entries:
        for key, value in rules.items():
            entries.put(key, value)
        kernel.command(_FREEZE, struct.pack("=I", entries.fd), "freeze a map")
        return kernel.load_program(_CGROUP_DEVICE_PROGRAM, instructions(entries.fd, denied), NAME)


def _attached(program: int, target: int, cgroup: str) -> int:
    try:
        return kernel.command(_LINK_CREATE, struct.pack("=IIII", program, target, _CGROUP_DEVICE, 0), f"attach to {cgroup}")
    except ProbeError as error:
        if error.details.get("errno") != errno.EPERM:
            raise
        raise NotStackable(f"a device filter that is attached to {cgroup} or above it lets no other stand beside it") from error


@contextmanager
def _cgroup(path: str, cgroup_id: int) -> Iterator[int]:
    try:
        found = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ProbeError(f"cannot open the cgroup {path}: {error.strerror}") from error
    with _closing(found) as fd:
        if os.fstat(fd).st_ino != cgroup_id:
            raise ProbeError(f"{path} is another cgroup by now")
        yield fd


@contextmanager
def _opened(pin: Path) -> Iterator[int]:
    try:
        fd = open_pin(str(pin), read_only=False)
    except PermissionError as error:
        raise NotPermitted(f"cannot open {pin}: {error.strerror}") from error
    with _closing(fd):
        yield fd


@contextmanager
def _closing(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)


def _name_of(program: int) -> str:
    with _closing(kernel.program_by_id(program)) as fd:
        return info(fd, 216)[_NAME_AT : _NAME_AT + _NAME_BYTES].rstrip(b"\0").decode()

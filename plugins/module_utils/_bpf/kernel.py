# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""What this kernel can do, and the few bpf(2) commands that libbpf of the older distributions lacks."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import re
import struct
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.entry import EM_X86_64
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.errors import NoBpffs, NotPermitted, ProbeError, Unsupported
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.maps import PinnedMap, bpf, info, open_pin

OLDEST_KERNEL = (5, 15)  # the first whose uprobes can be pinned
UPROBE_MULTI = 48  # BPF_TRACE_UPROBE_MULTI, the attach type
_PROG_LOAD, _PIN, _RAW_TRACEPOINT, _LINK_CREATE, _LINK_BY_ID = 5, 6, 17, 28, 30
_PROGRAM_BY_ID = 13
_KPROBE, _RAW_TRACEPOINT_PROGRAM = 2, 17
_BPF_FS_MAGIC = 0xCAFE4A11
_CAP_SYS_ADMIN = 21
_RETURN_ZERO = bytes([0xB7, 0, 0, 0, 0, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0])
_RETPROBE = 1
_PERF_EVENT = 41  # BPF_PERF_EVENT, the attach type
_REMOVAL_SECONDS = 10.0
_MAPS_AT, _MOST_MAPS = 52, 64  # in struct bpf_prog_info: nr_map_ids, map_ids; 64 is the kernel's limit


def version_of(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", release)[:2])


def check_machine(release: str, machine: str, *, has_btf: bool, effective: int) -> None:
    """Raises what is in the way, in words for people. `effective` are the process's capabilities as a bit mask."""
    if machine != "x86_64":
        raise Unsupported(f"the probes are built for x86_64, and this machine is {machine}", elf_machine=EM_X86_64)
    if version_of(release) < OLDEST_KERNEL:
        raise Unsupported(f"kernel {release} cannot pin a probe, {'.'.join(map(str, OLDEST_KERNEL))} and later can")
    if not has_btf:
        raise Unsupported(f"kernel {release} has no /sys/kernel/btf/vmlinux, from which the probes learn its structures")
    require_admin("attaching probes", effective)


def require_admin(what: str, effective: int) -> None:
    if not effective >> _CAP_SYS_ADMIN & 1:
        raise NotPermitted(f"{what} needs CAP_SYS_ADMIN, since what is attached already is opened by its number")


def require(bpffs_dir: str) -> None:
    """Raises unless probes can be attached here, and pinned in this folder or, where it is missing, in the nearest one above it."""
    check_machine(platform.release(), platform.machine(), has_btf=os.path.exists("/sys/kernel/btf/vmlinux"), effective=capabilities())
    require_bpffs(bpffs_dir)


def capabilities() -> int:
    """The process's effective ones, as a bit mask."""
    match = re.search(r"^CapEff:\s*(\S+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(match.group(1), 16) if match else 0


def require_bpffs(bpffs_dir: str) -> None:
    folder = Path(bpffs_dir)
    while not folder.exists():
        folder = folder.parent
    if not _is_bpffs(folder):
        raise NoBpffs(f"{folder} is not on a bpf filesystem: mount -t bpf bpf /sys/fs/bpf")


def _is_bpffs(folder: Path) -> bool:
    buffer = ctypes.create_string_buffer(256)  # struct statfs; its first word is the type
    if ctypes.CDLL(None, use_errno=True).statfs(os.fsencode(folder), buffer):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(folder))
    return bool(struct.unpack_from("=q", buffer.raw)[0] & 0xFFFFFFFF == _BPF_FS_MAGIC)


def has_uprobe_multi() -> bool:
    """Asked by attaching to what cannot be: a kernel that knows the type says that the path is no file."""
    program = _idle_program(_KPROBE, UPROBE_MULTI)
    try:
        os.close(attach_multi(program, "/", {"": 1}, {"": 0}, returns=False))
    except ProbeError as error:
        return error.details.get("errno") == errno.EBADF
    finally:
        os.close(program)
    return True


def attach_idle(path: str, *, returns: bool) -> int:
    """A link of a program that does nothing to the first instruction of a file."""
    program = _idle_program(_KPROBE, UPROBE_MULTI)
    try:
        return attach_multi(program, path, {"": 0}, {"": 0}, returns=returns)
    finally:
        os.close(program)


def has_raw_tracepoint(name: str) -> bool:
    """Asked by attaching a program that does nothing."""
    program = _idle_program(_RAW_TRACEPOINT_PROGRAM, 0)
    try:
        os.close(attach_raw_tracepoint(program, name))
    except ProbeError as error:
        if error.details.get("errno") == errno.ENOENT:
            return False
        raise
    finally:
        os.close(program)
    return True


def _idle_program(kind: int, attach_type: int) -> int:
    return load_program(kind, _RETURN_ZERO, attach_type=attach_type)


def load_program(kind: int, instructions: bytes, name: str = "", attach_type: int = 0) -> int:
    text, license_ = ctypes.create_string_buffer(instructions, len(instructions)), ctypes.create_string_buffer(b"GPL")
    attributes = struct.pack("=IIQQ", kind, len(instructions) // 8, ctypes.addressof(text), ctypes.addressof(license_))
    return command(_PROG_LOAD, attributes.ljust(48, b"\0") + struct.pack("=16sII", name.encode(), 0, attach_type), "load a program")


def attach_multi(program: int, path: str, sites: Mapping[str, int], cookies: Mapping[str, int], *, returns: bool) -> int:
    """One link for all functions of one file."""
    names = sorted(sites)
    name = ctypes.create_string_buffer(os.fsencode(path))
    offsets, values = _array([sites[each] for each in names]), _array([cookies[each] for each in names])
    buffers = (ctypes.addressof(name), ctypes.addressof(offsets), 0, ctypes.addressof(values))
    attributes = struct.pack("=IIII4QIII", program, 0, UPROBE_MULTI, 0, *buffers, len(names), _RETPROBE if returns else 0, 0)
    return command(_LINK_CREATE, attributes, "attach to the functions of a library")


def perf_event_link(program: int, event: int) -> int:
    return command(_LINK_CREATE, struct.pack("=IIII", program, event, _PERF_EVENT, 0), "attach to a tracepoint")


def attach_raw_tracepoint(program: int, name: str) -> int:
    text = ctypes.create_string_buffer(name.encode())
    return command(_RAW_TRACEPOINT, struct.pack("=QI", ctypes.addressof(text), program), f"attach to {name}")


def pin(fd: int, path: str) -> None:
    text = ctypes.create_string_buffer(os.fsencode(path))
    command(_PIN, struct.pack("=QII", ctypes.addressof(text), fd, 0), f"pin {path}")


def link_ids(path: str) -> tuple[int, int]:
    """The link's id and its program's."""
    try:
        fd = open_pin(path, read_only=False)
    except OSError as error:
        raise ProbeError(f"cannot open {path}: {error.strerror}") from error
    try:
        _type, link, program = struct.unpack_from("=III", info(fd, 64))
    finally:
        os.close(fd)
    return link, program


def map_id(path: str) -> int:
    with PinnedMap(path) as pinned:
        return pinned.info.id


def program_maps(number: int) -> set[int]:
    """The ids of the maps that a program uses."""
    ids = (ctypes.c_uint32 * _MOST_MAPS)()
    fd = program_by_id(number)
    try:
        told = info(fd, 216, struct.pack("=IQ", _MOST_MAPS, ctypes.addressof(ids)).rjust(_MAPS_AT + 12, b"\0"))
    finally:
        os.close(fd)
    return set(ids[: struct.unpack_from("=I", told, _MAPS_AT)[0]])


def program_by_id(number: int) -> int:
    return command(_PROGRAM_BY_ID, struct.pack("=I", number), f"open program {number}")


def wait_until_gone(links: Sequence[int]) -> None:
    """Links end a moment after their last pin, one after the other."""
    for link in links:
        end = time.monotonic() + _REMOVAL_SECONDS
        while _exists(link):
            if time.monotonic() > end:
                raise ProbeError(f"link {link} is held by somebody else and goes on", link=link)
            time.sleep(0.02)


def _exists(link: int) -> bool:
    try:
        os.close(bpf(_LINK_BY_ID, struct.pack("=I", link)))
    except OSError as error:
        if error.errno == errno.ENOENT:
            return False
        raise
    return True


def _array(values: Sequence[int]) -> ctypes.Array[ctypes.c_uint64]:
    return (ctypes.c_uint64 * len(values))(*values)


def command(number: int, attributes: bytes, what: str) -> int:
    try:
        return bpf(number, attributes)
    except OSError as error:
        raise ProbeError(f"cannot {what}: {error.strerror}", errno=error.errno) from error

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What gpu_vm counts of system calls on made-up device files: memory's, under the names of the driver's."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import stat
import struct
import time
from pathlib import Path

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf import mappings, syscalls
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.errors import Unsupported
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.libbpf import LoadedObject
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.maps import PinnedMap, bpf
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.probes import PROBES

ZERO, TTY_ONLY, PAGE, MAP_UPDATE = os.makedev(1, 5), 0x5401, mmap.PAGESIZE, 2


@pytest.fixture
def maps(namespace):
    namespace.probe(probes=["gpu_vm"])
    return Path(namespace.bpffs) / "gpu_vm/maps"


@pytest.fixture
def opened(tmp_path):
    """Device files by name, open."""
    with contextlib.ExitStack() as ends:

        def make(name, kind=stat.S_IFCHR):
            path = tmp_path / name
            if kind == stat.S_IFCHR:
                os.mknod(path, kind | 0o600, ZERO)
            else:
                path.write_bytes(bytes(PAGE))
            fd = os.open(path, os.O_RDWR)
            ends.callback(os.close, fd)
            return fd

        yield make


def told(maps, pid=None):
    return {
        (each.device, each.call.name.lower()): (each.durations.count, each.failed, each.mapped_bytes)
        for each in mappings.calls(maps)
        if each.tgid == (pid or os.getpid())
    }


def ask(fd):
    with contextlib.suppress(OSError):
        fcntl.ioctl(fd, TTY_ONLY, bytes(64))


def test_calls_on_the_drivers_files_are_counted_by_process_file_and_call(maps, opened):
    gpu, uvm, other, plain = opened("nvidia0"), opened("nvidia-uvm"), opened("zero"), opened("nvidia.log", stat.S_IFREG)
    for fd in (gpu, gpu, uvm, other, plain):
        ask(fd)
    for fd, pages in ((gpu, 3), (gpu, 1), (other, 1), (plain, 1)):
        mmap.mmap(fd, pages * PAGE, flags=mmap.MAP_PRIVATE).close()
    mmap.mmap(-1, 9 * PAGE).close()
    assert told(maps) == {("nvidia0", "ioctl"): (2, 2, 0), ("nvidia0", "mmap"): (2, 0, 4 * PAGE), ("nvidia-uvm", "ioctl"): (1, 1, 0)}
    for each in mappings.calls(maps):
        assert sum(each.durations.slots) == each.durations.count and 0 < each.durations.total_ns < 1e10


def test_a_mapping_that_is_refused_maps_nothing(maps, opened):
    gpu = opened("nvidia1")
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    assert libc.mmap(None, ctypes.c_size_t(1 << 60), mmap.PROT_READ, mmap.MAP_PRIVATE, gpu, 0) == ctypes.c_void_p(-1).value
    assert told(maps) == {("nvidia1", "mmap"): (1, 1, 0)}


def test_two_sets_of_programs_count_each_call_once(maps, opened):
    """Over the same maps, as while one replaces the other."""
    gpu = opened("nvidia0")
    with LoadedObject(PROBES["gpu_vm"].image, str(maps), {}, {}) as loaded, contextlib.ExitStack() as ends:
        for program, name in PROBES["gpu_vm"].tracepoints.items():
            ends.callback(os.close, syscalls.attach(loaded.program_fd(program), name))
        for _each in range(5):
            ask(gpu)
        mmap.mmap(gpu, PAGE, flags=mmap.MAP_PRIVATE).close()
    assert told(maps) == {("nvidia0", "ioctl"): (5, 5, 0), ("nvidia0", "mmap"): (1, 0, PAGE)}


def test_processes_are_told_with_their_container_and_go_when_they_have_ended(maps, namespace, opened, container_cgroup):
    identifier, folders = container_cgroup
    gpu = opened("nvidiactl")
    begin, go = os.pipe()
    child = os.fork()
    if not child:
        for folder in folders.values():
            (folder / "cgroup.procs").write_text(str(os.getpid()))
        ask(gpu)
        os.close(go)
        os.read(begin, 1)
        os._exit(0)
    os.close(begin)
    end = time.monotonic() + 60
    while not told(maps, child) and time.monotonic() < end:
        time.sleep(0.05)
    (said,) = [each for each in namespace.info(probe="gpu_vm")["calls"] if each["pid"] == child]
    assert (said["device"], said["call"], said["count"], said["living"]) == ("nvidiactl", "ioctl", 1, True)
    assert said["container"]["id"] == identifier and said["cgroup_ids"]["v2"] == folders["cgroup2"].stat().st_ino
    os.close(go)
    os.waitpid(child, 0)
    (said,) = [each for each in namespace.info(probe="gpu_vm")["calls"] if each["pid"] == child]
    assert (said["living"], said["container"]) == (False, None)
    assert not namespace.probe(probes=["gpu_vm"])["changed"]
    assert not told(maps, child), "swept by the run"
    namespace.probe("absent", probes=["gpu_vm"])
    assert not Path(namespace.bpffs).exists()


def test_what_the_map_has_no_room_for_is_told(maps, opened):
    with PinnedMap(str(maps / "vm_calls"), read_only=False) as entries:
        value = ctypes.create_string_buffer(entries.info.value_size)
        for number in range(entries.info.max_entries):
            key = ctypes.create_string_buffer(struct.pack("=QII24s", number, 1, 1, b"nvidia0"), 40)
            bpf(MAP_UPDATE, struct.pack("=IIQQQ", entries.fd, 0, ctypes.addressof(key), ctypes.addressof(value), 0))
    ask(opened("nvidia0"))
    assert told(maps) == {} and mappings.counters(maps) == {"vm_full": 1}


def test_a_tracepoint_that_this_kernel_lacks_is_named(maps):
    with pytest.raises(Unsupported, match="no tracepoint syscalls/sys_enter_none"):
        syscalls.attach(0, "syscalls/sys_enter_none")

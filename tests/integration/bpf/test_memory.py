# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What cuda_mem counts, against processes that know what they hold."""

from __future__ import annotations

import ctypes
import errno
import itertools
import json
import random
import struct
import subprocess
from contextlib import ExitStack

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf import memory
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.layout import KINDS, Usage
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.maps import PinnedMap, bpf
from cluster.objects import wait_until

KIB = 1024
ON_DEVICE = [0] * 8 + [1] + [0] * 23  # CUmemAllocationProp with location.type
ON_HOST = [0] * 8 + [2] + [0] * 23


def held(namespace, pid=None):
    """Bytes by kind, without those of which there are none; of one process, or of all, as their cgroups have it too."""
    found = by_kind(account.usage for account in memory.accounts(namespace.maps) if pid in (None, account.tgid))
    if pid is None:
        assert found == held_by_cgroups(namespace)
    return found


def held_by_cgroups(namespace):
    """The maps are read one after the other: where a process may be ending, this may be the older or the newer."""
    return by_kind(memory.cgroups(namespace.maps).values())


def by_kind(usages):
    return {kind: size for kind, size in Usage.sum(usages).held_bytes.items() if size}


def counted(namespace):
    """Counters that are not zero, but that of calls."""
    return {name: count for name, count in memory.counters(namespace.maps).items() if count and name != "calls"}


@pytest.mark.parametrize("attach", ["multi", "perf"])
@pytest.mark.parametrize("shape", ["thunk", "push"])
def test_calls_of_threads_and_processes_are_exact(namespace, built, shape, attach):
    """A quarter of a million, so that it is a million over the shapes and the ways to attach. Then they fork, exec, exit and are killed."""
    namespace.probe(libraries=[built[shape]], attach=attach, max_allocations=65536)
    with ExitStack() as stack:
        running = []
        for seed in range(4):
            command = [built["workload"], built[shape], str(seed), "4", "64000"]
            running.append(stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)))
            stack.callback(running[-1].kill)
        truths = [json.loads(each.stdout.readline()) for each in running]
        for each, truth in zip(running, truths):
            assert held(namespace, each.pid) == {kind: truth[kind] for kind in ("device", "managed", "host", "pool")}
        assert memory.counters(namespace.maps)["calls"] == sum(truth["made"] for truth in truths) >= 256000
        assert sum(each["count"] for each in memory.failures(namespace.maps)) == sum(truth["failed"] for truth in truths)
        assert counted(namespace) == {}

        def tell(which, word):
            running[which].stdin.write(f"{word}\n")
            running[which].stdin.flush()

        def total(*which):
            return {kind: size for kind in KINDS if (size := sum(truths[each].get(kind, 0) for each in which))}

        tell(0, "fork")
        wait_until(lambda: memory.counters(namespace.maps)["untracked_frees"] > 0, "the child's frees")
        assert held(namespace) == total(0, 1, 2, 3)
        tell(1, "exec")
        wait_until(lambda: held_by_cgroups(namespace) == total(0, 2, 3), "nothing left of the one that exec'ed")
        wait_until(lambda: len(memory.accounts(namespace.maps)) == 3, "its account gone")
        assert held(namespace) == total(0, 2, 3)
        running[2].kill()
        running[2].wait()
        assert held(namespace) == total(0, 3)
        tell(0, "exit")
        running[0].wait()
        tell(3, "exit")
        running[3].wait()
        assert held(namespace) == {}
        assert memory.accounts(namespace.maps) == []


def test_each_kind_and_its_end(namespace, built, caller):
    namespace.probe(libraries=[built["push"]])
    with caller(built["push"]) as process:
        device = process.ok("cuMemAlloc_v2", None, 4 * KIB)
        managed = process.ok("cuMemAllocManaged", None, 8 * KIB, 1)
        process.ok("cuMemHostAlloc", None, 16 * KIB, 0)
        process.ok("cuMemAllocAsync", None, 32 * KIB, 0)
        shared = process.ok("cuIpcOpenMemHandle_v2", None)
        assert held(namespace) == {"device": 4 * KIB, "managed": 8 * KIB, "host": 16 * KIB, "pool": 32 * KIB}
        assert Usage.sum(each.usage for each in memory.accounts(namespace.maps)).live["shared"] == 1
        for address in (device, managed):
            process.ok("cuMemFree_v2", address)
        process.ok("cuIpcCloseMemHandle", shared)
        assert held(namespace) == {"host": 16 * KIB, "pool": 32 * KIB}
        assert counted(namespace) == {}


def test_a_free_that_fails_changes_nothing(namespace, built, caller):
    namespace.probe(libraries=[built["push"]])
    with caller(built["push"]) as process:
        address = process.ok("cuMemAlloc_v2", None, KIB)
        assert process.call("cuMemFree_v2", 4711) == [1]
        assert held(namespace) == {"device": KIB}
        process.ok("fail_once")
        assert process.call("cuMemFree_v2", address) == [719]
        assert held(namespace) == {"device": KIB}
        process.ok("cuMemFree_v2", address)
        assert process.call("cuMemFree_v2", address) == [1]
        assert held(namespace) == {}
        failed = {(each["operation"], each["result"]): each["count"] for each in memory.failures(namespace.maps)}
        assert failed == {("free", 1): 2, ("free", 719): 1}


def test_a_release_or_a_mapping_that_fails_changes_nothing(namespace, built, caller):
    namespace.probe(libraries=[built["push"]])
    with caller(built["push"]) as process:
        handle = process.ok("cuMemCreate", None, 64 * KIB, ON_DEVICE, 0)
        for call in (("cuMemRelease", handle), ("cuMemMap", 0x7F0000000000, 64 * KIB, 0, handle, 0)):
            process.ok("fail_once")
            assert process.call(*call) == [719]
        assert held(namespace) == {"handle": 64 * KIB}
        process.ok("cuMemRelease", handle)
        assert held(namespace) == {}
        assert counted(namespace) == {}


def test_properties_are_read_when_the_driver_has_read_them(namespace, built, caller):
    """At the entry their page is not in memory yet. What cannot be read at all is taken for the GPU's, and counted."""
    namespace.probe(libraries=[built["push"]])
    with caller(built["push"]) as process:
        process.ok("cuMemCreate", None, 64 * KIB, {"mapped": ON_DEVICE}, 0)
        process.ok("cuMemCreate", None, KIB, {"mapped": ON_HOST}, 0)
        assert held(namespace) == {"handle": 64 * KIB, "host": KIB}
        assert counted(namespace) == {}
        process.ok("cuMemCreate", None, 2 * KIB, [0] * 32, 0)
        assert held(namespace) == {"handle": 66 * KIB, "host": KIB}
        assert counted(namespace) == {"unknown_locations": 1}


@pytest.mark.parametrize("parts", [1, 2])
def test_an_unmapping_that_fails_changes_nothing(namespace, built, caller, parts):
    namespace.probe(libraries=[built["push"]])
    start, size = 0x7F0000000000, parts * 64 * KIB
    with caller(built["push"]) as process:
        for part in range(parts):
            handle = process.ok("cuMemCreate", None, 64 * KIB, ON_DEVICE, 0)
            process.ok("cuMemMap", start + part * 64 * KIB, 64 * KIB, 0, handle, 0)
            process.ok("cuMemRelease", handle)
        process.ok("fail_once")
        assert process.call("cuMemUnmap", start, size) == [719]
        assert held(namespace) == {"handle": size}
        process.ok("cuMemUnmap", start, size)
        assert held(namespace) == {}
        assert process.call("cuMemUnmap", start, size) == [0]
        assert counted(namespace) == {"untracked_frees": 1}


def test_a_nested_call_counts_once(namespace, built, caller):
    """The first version of the interface calls the second; the pitch is what the driver says, not the width."""
    namespace.probe(libraries=[built["thunk"]])
    with caller(built["thunk"]) as process:
        process.ok("cuMemAlloc", None, KIB)
        assert held(namespace) == {"device": KIB}
        process.ok("cuMemAllocPitch_v2", None, None, 1000, 3, 4)
        assert held(namespace) == {"device": KIB + 3 * KIB}
        assert memory.counters(namespace.maps)["calls"] == 2
        assert counted(namespace) == {}


def test_a_handle_lasts_until_it_is_released_and_unmapped(namespace, built, caller):
    namespace.probe(libraries=[built["push"]])
    with caller(built["push"]) as process:
        first = process.ok("cuMemCreate", None, 64 * KIB, ON_DEVICE, 0)
        second = process.ok("cuMemCreate", None, 64 * KIB, ON_DEVICE, 0)
        process.ok("cuMemCreate", None, KIB, ON_HOST, 0)
        assert held(namespace) == {"handle": 128 * KIB, "host": KIB}
        start = 0x7F0000000000
        process.ok("cuMemMap", start, 64 * KIB, 0, first, 0)
        process.ok("cuMemMap", start + 64 * KIB, 64 * KIB, 0, second, 0)
        process.ok("cuMemMap", start + (1 << 30), 64 * KIB, 0, first, 0)
        assert process.call("cuMemMap", start + (2 << 30), 64 * KIB, 0, 0, 0) == [1]
        process.ok("cuMemRelease", first)
        process.ok("cuMemRelease", second)
        assert held(namespace) == {"handle": 128 * KIB, "host": KIB}
        process.ok("cuMemUnmap", start, 128 * KIB)
        assert held(namespace) == {"handle": 64 * KIB, "host": KIB}
        process.ok("cuMemUnmap", start + (1 << 30), 64 * KIB)
        assert held(namespace) == {"host": KIB}
        assert counted(namespace) == {}


def test_a_context_takes_its_own_memory_with_it(namespace, built, caller):
    namespace.probe(libraries=[built["push"]])
    with caller(built["push"]) as process:
        one = process.ok("cuCtxCreate_v2", None, 0, 0)
        process.ok("cuMemAlloc_v2", None, KIB)
        two = process.ok("cuCtxCreate_v2", None, 0, 1)
        process.ok("cuMemAlloc_v2", None, 2 * KIB)
        process.ok("cuCtxSetCurrent", one)
        process.ok("cuMemAlloc_v2", None, 4 * KIB)
        process.ok("cuMemCreate", None, 8 * KIB, ON_DEVICE, 0)
        process.ok("cuCtxDestroy_v2", two)
        assert held(namespace) == {"device": 5 * KIB, "handle": 8 * KIB}
        process.ok("cuCtxDestroy_v2", one)
        assert held(namespace) == {"handle": 8 * KIB}


def test_a_primary_context_ends_with_its_last_reference_or_a_reset(namespace, built, caller):
    namespace.probe(libraries=[built["push"]])
    with caller(built["push"]) as process:
        process.ok("cuDevicePrimaryCtxRetain", None, 0)
        process.ok("cuDevicePrimaryCtxRetain", None, 0)
        process.ok("cuMemAlloc_v2", None, KIB)
        process.ok("cuDevicePrimaryCtxRelease_v2", 0)
        assert held(namespace) == {"device": KIB}
        process.ok("cuDevicePrimaryCtxRelease_v2", 0)
        assert held(namespace) == {}
        process.ok("cuDevicePrimaryCtxRetain", None, 0)
        process.ok("cuMemAlloc_v2", None, KIB)
        process.ok("cuDevicePrimaryCtxReset_v2", 0)
        assert held(namespace) == {}


def test_a_primary_context_that_two_threads_retain_at_once_has_two_references(namespace, built, tmp_path):
    namespace.probe(libraries=[built["push"]])
    (tmp_path / "race.c").write_text("""
        #include <pthread.h>
        int cuDevicePrimaryCtxRetain(void **, int);
        static volatile int arrived;
        static void *retain(void *unused) {
            for (int device = 0; device < 1000; device++) {
                void *context;
                __sync_fetch_and_add(&arrived, 1);
                while (arrived < 2 * (device + 1)) ; /* a barrier that sleeps would let one go first */
                cuDevicePrimaryCtxRetain(&context, device);
            }
            return 0;
        }
        int main(void) {
            pthread_t threads[2];
            for (int i = 0; i < 2; i++) pthread_create(&threads[i], 0, retain, 0);
            for (int i = 0; i < 2; i++) pthread_join(threads[i], 0);
        }""")
    subprocess.run(["gcc", "-o", tmp_path / "race", tmp_path / "race.c", built["push"], "-lpthread"], check=True)
    subprocess.run([tmp_path / "race"], env={"LD_LIBRARY_PATH": str(built["push"].parent)}, check=True)
    with PinnedMap(str(namespace.maps / "primaries")) as primaries:
        references = [struct.unpack("=Qq", value)[1] for _key, value in primaries.items()]
    assert references == [2] * 1000


def test_a_context_that_was_reset_ends_once(namespace, built, caller):
    """With its last reference. Memory of an unknown context stays while more than one may have it."""
    namespace.probe(libraries=[built["push"]])
    with caller(built["push"]) as process:
        for device in range(3):
            process.ok("cuDevicePrimaryCtxRetain", None, device)
        process.ok("cuDevicePrimaryCtxReset_v2", 0)
        process.ok("cuDevicePrimaryCtxRelease_v2", 0)
        process.ok("cuMemAlloc_v2", None, KIB)
        process.ok("cuDevicePrimaryCtxRelease_v2", 1)
        assert held(namespace) == {"device": KIB}
        process.ok("cuDevicePrimaryCtxRelease_v2", 2)
        assert held(namespace) == {}


def test_what_is_older_than_the_probes_is_counted_as_such(namespace, built, caller):
    """Whose context a late comer's memory is in nobody can tell, so that it stays until the process ends."""
    with caller(built["push"]) as process:
        old = process.ok("cuMemAlloc_v2", None, KIB)
        context = process.ok("cuCtxCreate_v2", None, 0, 0)
        namespace.probe(libraries=[built["push"]])
        process.ok("cuMemFree_v2", old)
        process.ok("cuMemAlloc_v2", None, 2 * KIB)
        process.ok("cuDevicePrimaryCtxRelease_v2", 0)
        process.ok("cuCtxDestroy_v2", context)
        assert held(namespace) == {"device": 2 * KIB}
        assert counted(namespace) == {"untracked_frees": 1, "unknown_contexts": 1}


def test_a_full_map_is_counted_and_never_charged(namespace, built, caller):
    namespace.probe(libraries=[built["push"]], max_allocations=8)
    with caller(built["push"]) as process:
        addresses = [process.ok("cuMemAlloc_v2", None, KIB) for _one in range(20)]
        kept = held(namespace)["device"] // KIB
        assert 8 <= kept < 20  # the kernel's hash keeps a few elements for each CPU in reserve
        missed = {"untracked_allocations": 20 - kept, "untracked_bytes": (20 - kept) * KIB}
        assert counted(namespace) == missed
        for address in addresses:
            process.ok("cuMemFree_v2", address)
        assert held(namespace) == {}
        assert counted(namespace) == {**missed, "untracked_frees": 20 - kept}


def fill(pin):
    """Takes every place of a map that is left, with keys that nothing else uses, no pid of this machine either."""
    update = 2
    with PinnedMap(str(pin), read_only=False) as each:
        value = ctypes.create_string_buffer(each.info.value_size)
        for number in itertools.count(1):
            key = ctypes.create_string_buffer(struct.pack("=I", number | 1 << 31).rjust(each.info.key_size, b"\xff"), each.info.key_size)
            try:
                bpf(update, struct.pack("=IIQQQ", each.fd, 0, ctypes.addressof(key), ctypes.addressof(value), 0))
            except OSError as error:
                assert error.errno == errno.E2BIG
                return


@pytest.mark.parametrize("name", ["processes", "accounts", "cgroups"])
def test_whichever_map_is_full_nothing_is_half_charged(namespace, built, caller, name):
    namespace.probe(libraries=[built["push"]])
    fill(namespace.maps / name)
    with caller(built["push"]) as process:
        address = process.ok("cuMemAlloc_v2", None, KIB)
        assert counted(namespace) == {"untracked_allocations": 1, "untracked_bytes": KIB}
        assert Usage.sum(memory.cgroups(namespace.maps).values()).held_bytes["device"] == 0
        process.ok("cuMemFree_v2", address)
        assert Usage.sum(memory.cgroups(namespace.maps).values()).held_bytes["device"] == 0


def test_with_no_room_for_a_call_its_free_still_counts(namespace, built, caller):
    namespace.probe(libraries=[built["push"]])
    with caller(built["push"]) as process:
        address = process.ok("cuMemAlloc_v2", None, KIB)
        fill(namespace.maps / "calls")
        process.ok("cuMemAlloc_v2", None, 2 * KIB)
        assert held(namespace) == {"device": KIB}
        process.ok("cuMemFree_v2", address)
        assert held(namespace) == {}
        assert counted(namespace) == {"lost_calls": 2, "assumed_frees": 1}


@pytest.mark.parametrize("seed", range(3))
def test_handles_and_contexts_in_any_order(namespace, built, caller, seed):
    """Against a model of what the driver promises."""
    namespace.probe(libraries=[built["thunk"]])
    chance = random.Random(seed)
    contexts, stack, memory_of, references, size_of, mappings = [], [], {}, {}, {}, {}

    with caller(built["thunk"]) as process:

        def create_context():
            contexts.append(process.ok("cuCtxCreate_v2", None, 0, 0))
            stack.insert(0, contexts[-1])

        def push():
            if len(stack) < 4:  # as many as are followed
                stack.insert(0, chance.choice(contexts))
                process.ok("cuCtxPushCurrent_v2", stack[0])

        def pop():
            if len(stack) > 1:
                stack.pop(0)
                process.ok("cuCtxPopCurrent_v2", None)

        def switch():
            stack[0] = chance.choice(contexts)
            process.ok("cuCtxSetCurrent", stack[0])

        def destroy_context():
            idle = [context for context in contexts if context not in stack]
            if idle:
                gone = chance.choice(idle)
                contexts.remove(gone)
                process.ok("cuCtxDestroy_v2", gone)
                for address in [address for address, (context, _size) in memory_of.items() if context == gone]:
                    del memory_of[address]

        def allocate():
            size = chance.randrange(1, 1 << 20)
            memory_of[process.ok("cuMemAlloc_v2", None, size)] = (stack[0], size)

        def free():
            if memory_of:
                address = chance.choice(list(memory_of))
                del memory_of[address]
                process.ok("cuMemFree_v2", address)

        def create_handle():
            size = 65536 * chance.randrange(1, 5)
            handle = process.ok("cuMemCreate", None, size, ON_DEVICE, 0)
            references[handle], size_of[handle] = 1, size

        def drop(handle):
            references[handle] -= 1
            if not references[handle]:
                del references[handle], size_of[handle]

        def release():
            held_by_name = [handle for handle in references if references[handle] > list(mappings.values()).count(handle)]
            if held_by_name:
                handle = chance.choice(held_by_name)
                process.ok("cuMemRelease", handle)
                drop(handle)

        def map_handle():
            if references and len(mappings) < 1024:
                handle = chance.choice(list(references))
                address = next(at for at in (0x7F0000000000 + 65536 * 8 * number for number in range(1025)) if at not in mappings)
                process.ok("cuMemMap", address, size_of[handle], 0, handle, 0)
                mappings[address] = handle
                references[handle] += 1

        def unmap():
            if mappings:
                address = chance.choice(list(mappings))
                handle = mappings.pop(address)
                process.ok("cuMemUnmap", address, size_of[handle])
                drop(handle)

        create_context()
        actions = [allocate, free, create_handle, release, map_handle, unmap] * 4 + [create_context, push, pop, switch, destroy_context]
        for number in range(1500):
            action = chance.choice(actions)
            if action is create_context and (len(contexts) > 8 or len(stack) > 3):
                continue
            action()
            if number % 50 == 0:
                expected = {"device": sum(size for _context, size in memory_of.values()), "handle": sum(size_of.values())}
                assert held(namespace) == {kind: size for kind, size in expected.items() if size}
        assert counted(namespace) == {}


def test_a_handle_that_is_retained_lasts_longer(namespace, built, caller):
    namespace.probe(libraries=[built["push"]])
    with caller(built["push"]) as process:
        handle = process.ok("cuMemCreate", None, 64 * KIB, ON_DEVICE, 0)
        process.ok("cuMemMap", 0x7F0000000000, 64 * KIB, 0, handle, 0)
        assert process.ok("cuMemRetainAllocationHandle", None, 0x7F0000000000) == handle
        process.ok("cuMemRelease", handle)
        process.ok("cuMemUnmap", 0x7F0000000000, 64 * KIB)
        assert held(namespace) == {"handle": 64 * KIB}
        process.ok("cuMemRelease", handle)
        assert held(namespace) == {}


def test_a_cgroup_that_is_gone_is_swept(namespace, built, caller, container_cgroup):
    _identifier, folders = container_cgroup
    namespace.probe(libraries=[built["push"]])
    with caller(built["push"]) as process:
        for folder in folders.values():
            (folder / "cgroup.procs").write_text(str(process.pid))
        process.ok("cuMemAlloc_v2", None, KIB)
    gone = folders["cgroup2"].stat().st_ino
    namespace.probe(libraries=[built["push"]])
    assert gone in {ids.v2 for ids in memory.cgroups(namespace.maps)}
    for folder in folders.values():
        wait_until(lambda folder=folder: not (folder / "cgroup.procs").read_text(), "the cgroup empty")
        folder.rmdir()
    namespace.probe(libraries=[built["push"]])
    assert gone not in {ids.v2 for ids in memory.cgroups(namespace.maps)}


def test_what_an_ended_process_left_is_swept(namespace, built, caller):
    namespace.probe(libraries=[built["push"]], max_allocations=64)
    for _round in range(3):
        with caller(built["push"]) as process:
            for _one in range(60):
                process.ok("cuMemAlloc_v2", None, KIB)
        namespace.probe(libraries=[built["push"]], max_allocations=64)
    assert counted(namespace) == {}

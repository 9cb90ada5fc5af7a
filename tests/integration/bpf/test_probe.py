# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How probes come, stay, are replaced and go, and which copies of the library they reach."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf import bring, kernel, libbpf, libraries, memory, seccomp
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.functions import COOKIES
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.maps import PinnedMap, bpf
from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import ProcFs, parse_seconds
from cluster.objects import wait_until

KIB = 1024
ENABLE_STATISTICS = 32
OPEN_BY_ID = {"program": 13, "map": 14, "link": 30}


def kernel_objects(namespace):
    """What exists in the kernel for these probes, as (kind, id)."""
    found = set()
    for pin in namespace.links.iterdir():
        link, program = kernel.link_ids(str(pin))
        found |= {("link", link), ("program", program)}
    for pin in namespace.maps.iterdir():
        with PinnedMap(str(pin)) as each:
            found.add(("map", each.info.id))
    return found


def exists(kind, number):
    try:
        os.close(bpf(OPEN_BY_ID[kind], struct.pack("=I", number)))
    except OSError as error:
        assert error.errno == errno.ENOENT
        return False
    return True


def device_bytes(namespace):
    return sum(each.usage.held_bytes["device"] for each in memory.accounts(namespace.maps))


@pytest.mark.parametrize("attach", ["multi", "perf"])
def test_present_and_absent(namespace, built, attach):
    options = {"libraries": [built["push"]], "attach": attach}
    promised = namespace.probe(check_mode=True, **options)
    assert not Path(namespace.bpffs).exists()
    made = namespace.probe(**options)
    assert made["changed"]
    assert {key: made[key] for key in ("before", "after", "actions")} == {key: promised[key] for key in ("before", "after", "actions")}
    assert not namespace.probe(**options)["changed"]

    objects = kernel_objects(namespace)
    assert {kind for kind, _number in objects} == {"link", "program", "map"}
    gone = namespace.probe("absent")
    assert gone["after"] == made["before"]
    wait_until(lambda: not [each for each in objects if exists(*each)], "every link, program and map gone")
    assert not Path(namespace.bpffs).exists()
    assert not namespace.probe("absent")["changed"]


def test_restarted_counts_from_zero(namespace, built, caller):
    namespace.probe(libraries=[built["push"]])
    with caller(built["push"]) as process:
        process.ok("cuMemAlloc_v2", None, KIB)
        assert device_bytes(namespace) == KIB
        promised = namespace.probe("restarted", libraries=[built["push"]], check_mode=True)
        assert [step["action"] for step in promised["actions"]] == ["detach"] * 4 + ["forget"] + ["attach"] * 4
        made = namespace.probe("restarted", libraries=[built["push"]])
        assert {key: made[key] for key in ("after", "actions")} == {key: promised[key] for key in ("after", "actions")}
        assert device_bytes(namespace) == 0
        process.ok("cuMemAlloc_v2", None, KIB)
        assert device_bytes(namespace) == KIB


def test_an_upgrade_misses_nothing_and_counts_nothing_twice(namespace, built, monkeypatch):
    """Each other version has its own links over the same maps, while threads allocate and free."""
    namespace.probe(libraries=[built["push"]], max_allocations=65536)
    first = bring.PROBES["cuda_mem"]
    with subprocess.Popen(
        [built["workload"], built["push"], "7", "4", "400000"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        for version in range(3):
            monkeypatch.setitem(bring.PROBES, "cuda_mem", replace(first, cookies={**first.cookies, f"cuMemVersion{version}": 1}))
            actions = [step["action"] for step in namespace.probe(libraries=[built["push"]], max_allocations=65536)["actions"]]
            assert actions == ["attach"] * 4 + ["detach"] * 4
        assert running.poll() is None
        truth = json.loads(running.stdout.readline())
        (account,) = memory.accounts(namespace.maps)
        assert {kind: account.usage.held_bytes[kind] for kind in ("device", "managed", "host", "pool")} == {
            kind: truth[kind] for kind in ("device", "managed", "host", "pool")
        }
        assert memory.counters(namespace.maps)["calls"] == truth["made"]


def killed_after(pins, namespace, library, monkeypatch):
    """A loader that ends by SIGKILL once it has pinned so many links."""
    child = os.fork()
    if not child:
        left, real = iter(range(pins)), kernel.pin
        monkeypatch.setattr(
            kernel, "pin", lambda *given: os.kill(os.getpid(), signal.SIGKILL) if next(left, None) is None else real(*given)
        )
        namespace.probe(libraries=[library])
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL


def test_a_loader_that_is_killed_midway_is_made_good(namespace, built, caller, monkeypatch):
    """What it left is taken over, or taken away."""
    for pins in range(4):
        killed_after(pins, namespace, built["push"], monkeypatch)
        if pins % 2:
            namespace.probe(libraries=[built["push"]])
            with caller(built["push"]) as process:
                process.ok("cuMemAlloc_v2", None, KIB)
                assert device_bytes(namespace) == KIB
        namespace.probe("absent")
        assert not Path(namespace.bpffs).exists()


@pytest.mark.parametrize("lost", ["all", "one"])
def test_links_whose_maps_are_not_the_pinned_ones_are_attached_anew(namespace, built, caller, lost):
    """As two loaders at once, or one that was interrupted, could leave them."""
    namespace.probe(libraries=[built["push"]])
    for pin in list(namespace.maps.iterdir()) if lost == "all" else [namespace.maps / "accounts"]:
        pin.unlink()
    assert namespace.info(refused="probe_error")["msg"]
    promised = namespace.probe(libraries=[built["push"]], check_mode=True)
    made = namespace.probe(libraries=[built["push"]])
    assert [step["action"] for step in made["actions"]] == ["detach"] * 4 + ["forget"] + ["attach"] * 4
    assert made["after"] == promised["after"] and made["actions"] == promised["actions"]
    with caller(built["push"]) as process:
        process.ok("cuMemAlloc_v2", None, KIB)
        assert device_bytes(namespace) == KIB
    assert not namespace.probe(libraries=[built["push"]])["changed"]


def test_maps_of_another_size_are_refused_and_left(namespace, built):
    namespace.probe(libraries=[built["push"]])
    namespace.probe(libraries=[])
    namespace.probe(libraries=[built["push"]], max_allocations=99, refused="other_layout")
    namespace.probe("restarted", libraries=[built["push"]], max_allocations=99)


@pytest.mark.parametrize("how", ["overlay", "bind"])
def test_one_file_seen_in_two_places_counts_once(namespace, built, caller, tmp_path, how):
    lower, merged = built["push"].parent, tmp_path / "merged"
    merged.mkdir()
    if how == "overlay":
        for name in ("upper", "work"):
            (tmp_path / name).mkdir()
        options = f"lowerdir={lower},upperdir={tmp_path}/upper,workdir={tmp_path}/work"
        command = ["mount", "-t", "overlay", "overlay", "-o", options, merged]
    else:
        command = ["mount", "--bind", lower, merged]
    subprocess.run(namespace.enter(*command), check=True)
    seen = f"{merged}/libcuda.so.1"
    copies = namespace.probe(libraries=[built["push"], f"{namespace.root}{seen}"])["copies"]
    assert len(copies) == 2
    with caller(built["push"]) as outside, caller(seen, wrap=namespace.enter()) as inside:
        for process in (outside, inside):
            process.ok("cuMemAlloc_v2", None, KIB)
            address = process.ok("cuMemAlloc_v2", None, 2 * KIB)
            process.ok("cuMemFree_v2", address)
        assert [each.usage.held_bytes["device"] for each in memory.accounts(namespace.maps)] == [KIB, KIB]
        assert memory.counters(namespace.maps)["calls"] == 6


def test_copies_are_found_in_other_namespaces_and_gone_ones_are_told(namespace, built, caller, tmp_path):
    """In the usual places. One that is mapped from elsewhere, and a volume, has to be named."""
    private, doomed = Path("/run/nvidia/driver/usr/lib/some-linux-gnu/libcuda.so.580.1"), tmp_path / "doomed/libcuda.so.1"
    volume = tmp_path / "volume/libcuda.so.1"
    volume.parent.mkdir()
    for where in ("/run", volume.parent):
        subprocess.run(namespace.enter("mount", "-t", "tmpfs", "tmpfs", where), check=True)
    subprocess.run(namespace.enter("mkdir", "-p", private.parent), check=True)
    subprocess.run(namespace.enter("cp", built["thunk"], volume), check=True)
    doomed.parent.mkdir()
    shutil.copy(built["thunk"], doomed)
    subprocess.run(namespace.enter("cp", built["thunk"], private), check=True)
    with caller(private, wrap=namespace.enter()) as inside, caller(doomed) as old:
        doomed.unlink()
        result = namespace.probe()
        assert {"path": str(doomed), "pid": old.pid} in result["deleted"]
        assert [copy["pids"] for copy in result["copies"] if copy["path"].endswith(str(private))] == [[inside.pid]]
        inside.ok("cuMemAlloc_v2", None, KIB)
        assert [(each.tgid, each.usage.held_bytes["device"]) for each in memory.accounts(namespace.maps)] == [(inside.pid, KIB)]
    with caller(volume, wrap=namespace.enter()) as inside:
        (skipped,) = [each for each in namespace.probe()["not_probed"] if each["path"].endswith(str(volume))]
        assert "volume" in skipped["why"]
        namespace.probe(libraries=[f"{namespace.root}{volume}"])
        inside.ok("cuMemAlloc_v2", None, KIB)
        assert device_bytes(namespace) == KIB


def test_a_copy_that_is_deleted_keeps_its_probes_while_it_is_used(namespace, caller, built, tmp_path):
    doomed = tmp_path / "libcuda.so.1"
    shutil.copy(built["push"], doomed)
    with caller(doomed) as process:
        namespace.probe()
        address = process.ok("cuMemAlloc_v2", None, KIB)
        doomed.unlink()
        assert not namespace.probe()["changed"]
        process.ok("cuMemFree_v2", address)
        assert device_bytes(namespace) == 0
    assert [step["action"] for step in namespace.probe()["actions"]] == ["detach", "detach"]


def test_a_copy_that_the_kernel_refuses_is_told_and_the_others_are_probed(namespace, built, caller, tmp_path):
    """An instruction that no processor has, where a function begins. The process that has it mapped is in another root than the host's."""
    good, bad = tmp_path / "good/libcuda.so.1", tmp_path / "bad/libcuda.so.1"
    for path in (good, bad):
        path.parent.mkdir()
        shutil.copy(built["push"], path)
    site = libraries.Copy.read(str(bad), COOKIES).sites["cuMemAlloc_v2"]
    with open(bad, "r+b") as file:
        file.seek(site)
        file.write(b"\x06" * 8)
    with caller(good) as process, caller(bad) as other:
        result = namespace.probe()
        (why,) = [each["why"] for each in result["not_probed"] if each["path"].endswith(str(bad))]
        assert "cannot attach to the functions" in why
        assert not [copy for copy in result["copies"] if other.pid in copy["pids"]]
        process.ok("cuMemAlloc_v2", None, KIB)
        assert device_bytes(namespace) == KIB
        assert not namespace.probe()["changed"]


def test_a_process_in_a_pid_namespace_is_known_by_both_its_numbers(namespace, built, caller):
    namespace.probe(libraries=[built["push"]])
    with caller(built["push"], wrap=["unshare", "--pid", "--fork", "--kill-child"]) as process:
        process.ok("cuMemAlloc_v2", None, KIB)
        (account,) = memory.accounts(namespace.maps)
        parent = ProcFs("/proc").process(account.tgid).parent
        assert (account.ns_tgid, process.own_pid, parent) == (1, 1, process.pid)
        assert account.comm.startswith("python")


def test_memory_is_told_by_process_container_and_cgroup(namespace, built, caller, container_cgroup):
    """A process that moves keeps what it had where it had it."""
    identifier, folders = container_cgroup
    namespace.probe(libraries=[built["push"]])
    with caller(built["push"]) as process:
        process.ok("cuMemAlloc_v2", None, KIB)
        for folder in folders.values():
            (folder / "cgroup.procs").write_text(str(process.pid))
        address = process.ok("cuMemAlloc_v2", None, 2 * KIB)
        told = namespace.info()
        ids = {"v2": folders["cgroup2"].stat().st_ino, "v1": folders["cgroup"].stat().st_ino if "cgroup" in folders else 0}
        assert sorted((each["ids"] == ids, each["held_bytes"]["device"]) for each in told["cgroups"]) == [(False, KIB), (True, 2 * KIB)]
        (seen,) = told["processes"]
        assert (seen["pid"], seen["held_bytes"]["device"], seen["container"]["id"]) == (process.pid, 3 * KIB, identifier)
        assert len(seen["cgroups"]) == 2
        (container,) = told["containers"]
        assert (container["id"], container["pids"], container["held_bytes"]["device"]) == (identifier, [process.pid], 3 * KIB)
        process.ok("cuMemFree_v2", address)
        told = namespace.info()
        assert sorted((each["ids"] == ids, each["held_bytes"]["device"]) for each in told["cgroups"]) == [(False, KIB), (True, 0)]


def test_links_tell_since_when_and_what_they_cost(namespace, built, caller):
    before = time.time()
    namespace.probe(libraries=[built["push"]])
    statistics = bpf(ENABLE_STATISTICS, struct.pack("=I", 0))
    with caller(built["push"]) as process:
        for _one in range(10):
            process.ok("cuMemAlloc_v2", None, KIB)
    os.close(statistics)
    told = namespace.info()
    links = {link["name"].rsplit("_", 1)[1]: link for link in told["links"]}
    assert set(links) == {"enter", "leave", "exit", "exec"}
    assert links["enter"]["runs"] == links["leave"]["runs"] == told["counters"]["calls"] == 10
    assert 0 < links["enter"]["run_time_ns"] < 1e9
    for link in links.values():
        assert before - 1 <= parse_seconds(link["since"]) <= time.time()


def test_maps_are_read_without_any_privilege_and_not_written(namespace, built, caller):
    namespace.probe(libraries=[built["push"]])
    maps = "/sys/fs/bpf/gpuops/cuda_mem/maps"
    script = f"""
import os, pathlib
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf import memory
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.maps import open_pin
os.setgroups([]); os.setresgid(*[65534] * 3); os.setresuid(*[65534] * 3)
print(memory.accounts(pathlib.Path("{maps}"))[0].usage.held_bytes["device"])
try:
    open_pin("{maps}/accounts", read_only=False)
except OSError as error:
    print(error.errno)
"""
    with caller(built["push"]) as process:
        process.ok("cuMemAlloc_v2", None, KIB)
        environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
        command = namespace.enter(sys.executable, "-c", script)
        output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert output.split() == [str(KIB), str(errno.EACCES)]


def test_refusals(namespace, built, tmp_path, monkeypatch):
    stranger = tmp_path / "libcuda.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-x", "c", "/dev/null", "-o", stranger], check=True)
    assert "does not export cuMemAlloc_v2" in namespace.probe(libraries=[stranger], refused="symbol_missing")["msg"]
    assert "not a library" in namespace.probe(libraries=[__file__], refused="symbol_missing")["msg"]
    with monkeypatch.context() as without:
        without.setattr(libbpf, "_NAME", "libbpf.so.none")
        for check_mode in (True, False):
            namespace.probe(libraries=[built["push"]], check_mode=check_mode, refused="missing_library")
    namespace.bpffs = str(tmp_path / "bpf")
    assert "mount -t bpf" in namespace.probe(libraries=[built["push"]], refused="no_bpffs")["msg"]


def test_a_process_under_a_seccomp_filter_goes_on(namespace, built, caller):
    """One that denies the system call by which a probed function returns. On a kernel that would end the process the probes are refused instead."""
    deny = """
import os, sys
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf import seccomp
assert seccomp._deny(seccomp.URETPROBE)
os.execv(sys.argv[1], sys.argv[1:])
"""
    if seccomp.ends_processes(seccomp.URETPROBE, (0,), confined=False):
        namespace.probe(libraries=[built["push"]], refused="unsupported")
        return
    namespace.probe(libraries=[built["push"]])
    wrap = ["env", f"PYTHONPATH={':'.join(sys.path)}", sys.executable, "-c", deny]
    with caller(built["push"], wrap=wrap) as process:
        process.ok("cuMemAlloc_v2", None, KIB)
        assert device_bytes(namespace) == KIB


def test_the_objects_are_what_the_source_compiles_to(tmp_path):
    """With the compiler of Debian 12; another one's code differs."""
    folder = Path(__file__).parents[3]
    if "14.0.6" not in subprocess.run(["clang", "--version"], capture_output=True, text=True, check=True).stdout:
        pytest.skip("another clang")
    shutil.copytree(folder / "bpf", tmp_path / "bpf")
    subprocess.run(["make", "-s", "-C", tmp_path / "bpf", f"OUT={tmp_path}/objects.py"], check=True)
    assert (tmp_path / "objects.py").read_text() == (folder / "plugins/module_utils/_bpf/objects.py").read_text()

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Device filters in this machine's kernel.

The driver is made up: its capabilities are /dev/null and others that anybody can open, and its GPUs have device files and no driver, so that opening one
fails otherwise (ENXIO) where it is allowed than where it is denied (EPERM).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import stat
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf import device_filter, kernel
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.maps import bpf
from ansible_collections.gpuops.remediation.plugins.modules import cgroup_devices
from cluster.objects import wait_until
from own_cgroup import cgroup_v2
from run_module import run_module

__all__ = ["cgroup_v2"]

ALLOWED, DENIED, NO_DRIVER = 0, errno.EPERM, errno.ENXIO
UUID = "GPU-8a3f0c5e-6a49-4c43-9d0c-2f7ad0a4a1c3"
DEVICES = """Character devices:
  1 mem
  1 nvidia-caps
195 nvidia
195 nvidiactl
402 nvidia-uvm

Block devices:
 7 nvidia-blocks
"""
MINORS = {"gpu0/gi1/access": 3, "gpu0/gi1/ci0/access": 5, "gpu0/gi2/access": 8, "gpu0/gi2/ci0/access": 9, "config": 7}
NULL, ZERO, FULL, RANDOM, URANDOM = "/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"
GPU_FILES = {"nvidia0": 0, "nvidia1": 1, "nvidiactl": 255, "nvidia-modeset": 254}
ATTACH, DETACH, QUERY = 8, 9, 16  # bpf(2)
MULTI = 2
WORKER = """
import json, os, sys, time
kept = []
def ask(path):
    try:
        kept.append(os.open(path, os.O_RDONLY))
        return 0
    except OSError as error:
        return error.errno
def close(path):
    while kept:
        os.close(kept.pop())
def read(path):
    return len(os.read(kept[-1], 4))
def make(path):
    os.mknod(path, 0o020600, os.makedev(195, 7))
def both(paths):
    seen, until = [0, 0, 0], time.monotonic() + 60
    while not os.path.exists(paths[2]) and time.monotonic() < until:
        seen = [seen[0] + 1, seen[1] + (ask(paths[0]) != 0), seen[2] + (ask(paths[1]) == 0)]
        close(None)
    return seen
with open(sys.argv[1], "w") as file:
    file.write("0")
print("null", flush=True)
for line in sys.stdin:
    verb, argument = json.loads(line)
    print(json.dumps({"ask": ask, "close": close, "read": read, "make": make, "both": both}[verb](argument)), flush=True)
"""


class Tenant:
    """A process in a cgroup."""

    def __init__(self, folder):
        folder.mkdir(exist_ok=True)
        command = [sys.executable, "-c", WORKER, str(folder / "cgroup.procs")]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.answer()

    def tell(self, verb, argument=None):
        self.process.stdin.write(json.dumps([verb, argument]) + "\n")
        self.process.stdin.flush()

    def answer(self):
        return json.loads(self.process.stdout.readline())

    def do(self, verb, argument=None):
        self.tell(verb, argument)
        return self.answer()

    def open(self, *paths):
        """What came of it, one by one; nothing stays open."""
        found = [self.do("ask", str(path)) for path in paths]
        self.do("close")
        return found

    def end(self):
        self.process.kill()
        self.process.communicate()


class Node:
    def __init__(self, folder, cgroup, bpffs):
        self.folder, self.cgroup, self.bpffs = folder, cgroup, Path(bpffs)
        self.tenants = []
        self.proc, self.dev = folder / "proc", folder / "dev"
        self.dev.mkdir()
        for name, minor in GPU_FILES.items():
            os.mknod(self.dev / name, stat.S_IFCHR | 0o666, os.makedev(195, minor))
        os.mknod(self.dev / "nvidia-uvm", stat.S_IFCHR | 0o666, os.makedev(402, 0))
        files = {"devices": DEVICES, "driver/nvidia-caps/mig-minors": "".join(f"{name} {minor}\n" for name, minor in MINORS.items())}
        files.update({f"driver/nvidia/capabilities/{name.replace('/', '/mig/', 1)}": "" for name in MINORS if "/" in name})
        for minor, (address, uuid) in enumerate([("0000:00:06.0", UUID), ("0000:00:07.0", "GPU-????????")]):
            files[f"driver/nvidia/gpus/{address}/information"] = f"GPU UUID: \t {uuid}\nBus Location: {address}\nDevice Minor: {minor}\n"
        for name, text in files.items():
            (self.proc / name).parent.mkdir(parents=True, exist_ok=True)
            (self.proc / name).write_text(text)
        (self.proc / "sys").symlink_to("/proc/sys")

    def gpu(self, name):
        return self.dev / name

    def tenant(self, below=""):
        found = Tenant(self.cgroup.folder / below)
        (self.proc / str(found.process.pid)).symlink_to(f"/proc/{found.process.pid}")
        self.tenants.append(found)
        return found

    def filter(self, check_mode=False, cgroup=None, refused=None, **options):
        places = {"bpffs_dir": str(self.bpffs), "state_dir": str(self.folder / "state"), "proc_root": str(self.proc)}
        where = {"cgroup_root": str(self.cgroup.root), "cgroup": cgroup or self.cgroup.path}
        result = run_module(cgroup_devices.main, check_mode, **{**places, **where, **options})
        assert result.get("error_kind") == refused, result
        return result


@pytest.fixture
def node(tmp_path, cgroup_v2, namespace):
    found = Node(tmp_path, cgroup_v2, namespace.bpffs)
    yield found
    for tenant in found.tenants:
        tenant.end()
    found.filter(state="absent")
    assert not found.bpffs.exists()


def opens(result):
    return {one["device"]: one["opens"] for one in result["denied"]}


def test_a_tenant_has_its_mig_instance_and_nothing_else_of_the_driver(node):
    inside, below = node.tenant(), node.tenant("worker")
    wanted = {"mig_instances": [{"gpu": UUID, "gi": 1}]}
    predicted = node.filter(check_mode=True, **wanted)
    assert inside.open(RANDOM) == [ALLOWED], "nothing was done"
    done = node.filter(**wanted)
    assert {name: done[name] for name in ("before", "after", "actions")} == {
        name: predicted[name] for name in ("before", "after", "actions")
    }
    assert [one["device"] for one in done["after"]["filter"]["allowed"]] == [
        *("c 1:3", "c 1:5", "c 195:0", "c 195:255", "c 402:0", "c 402:1"),
    ]
    own = [NULL, ZERO, *map(node.gpu, ("nvidia0", "nvidiactl", "nvidia-uvm"))]
    others = [RANDOM, URANDOM, FULL, *map(node.gpu, ("nvidia1", "nvidia-modeset"))]
    for tenant in (inside, below):
        assert tenant.open(*own) == [ALLOWED, ALLOWED, NO_DRIVER, NO_DRIVER, NO_DRIVER]
        assert tenant.open(*others) == [DENIED] * 5
        assert tenant.open("/dev/tty") != [DENIED], "another driver's"
    assert inside.do("make", str(node.folder / "made")) is None and inside.open(node.folder / "made") == [DENIED]
    Path(RANDOM).open("rb").close()  # outside
    again = node.filter(**wanted)
    assert again["changed"] is False
    assert opens(again) == {"c 1:7": 2, "c 1:8": 2, "c 1:9": 2, "c 195:1": 2, "c 195:7": 1, "c 195:254": 2}
    assert {one["device"]: one["path"] for one in again["denied"]}["c 195:254"] == "/dev/nvidia-modeset"
    removed = node.filter(state="absent", check_mode=True)
    assert inside.open(RANDOM) == [DENIED]
    gone = node.filter(state="absent")
    assert (gone["after"], gone["after"]["filter"]) == (removed["after"], None) and opens(gone)["c 1:8"] == 3
    assert inside.open(RANDOM, node.gpu("nvidia1")) == [ALLOWED, NO_DRIVER]
    assert node.filter(state="absent")["changed"] is False


def test_what_is_open_keeps_working_and_is_reported(node):
    tenant = node.tenant("worker")
    assert tenant.do("ask", ZERO) == tenant.do("ask", NULL) == tenant.do("ask", URANDOM) == ALLOWED
    wanted = {"gpus": [], "devices": [NULL]}
    expected = [("c 1:9", URANDOM), ("c 1:5", ZERO)]
    for check_mode in (True, False):
        told = node.filter(check_mode, **wanted)["still_open"]
        assert [(one["device"], one["path"]) for one in told] == expected
        assert {one["pid"] for one in told} == {tenant.process.pid}
    assert tenant.do("read", URANDOM) == 4
    assert tenant.do("ask", URANDOM) == DENIED
    tenant.do("close")
    assert node.filter(**wanted)["still_open"] == []


def test_another_list_comes_without_a_gap_and_the_counts_go_on(node):
    """What both lists have is never denied, and what neither has never open, however often the list changes."""
    tenant, stop = node.tenant(), node.folder / "stop"
    lists = [[NULL, ZERO], [NULL, FULL]]
    node.filter(devices=lists[0])
    tenant.tell("both", [NULL, URANDOM, str(stop)])
    for number in range(1, 21):
        changed = node.filter(devices=lists[number % 2])
        assert [step["action"] for step in changed["actions"]] == ["replace"]
    stop.touch()
    rounds, denied, opened = tenant.answer()
    assert rounds > 1000 and (denied, opened) == (0, 0)
    assert opens(node.filter(devices=lists[0])) == {"c 1:9": rounds}
    assert tenant.open(ZERO, FULL) == [ALLOWED, DENIED]


def test_undone(node):
    tenant = node.tenant()
    first = node.filter(devices=[NULL], deny_others=True)
    assert first["undo"] == {"state": "absent"}
    second = node.filter(gpus=["0000:00:06.0"], devices=["c 1:5", "b 7:*"], modeset=True)
    assert tenant.open(NULL, ZERO, node.gpu("nvidia-modeset")) == [DENIED, ALLOWED, NO_DRIVER]
    back = node.filter(**second["undo"])
    assert back["after"] == first["after"] and tenant.open(NULL, ZERO) == [ALLOWED, ALLOWED]
    assert node.filter(**first["undo"])["after"]["filter"] is None


def test_with_all_other_devices_denied_those_that_every_program_needs_stay(node):
    tenant = node.tenant()
    os.mknod(node.dev / "loop", stat.S_IFBLK | 0o600, os.makedev(7, 0))
    os.mknod(node.dev / "kmsg", stat.S_IFCHR | 0o600, os.makedev(1, 11))
    node.filter(gpus=[1], deny_others=True)
    assert tenant.open(NULL, ZERO, FULL, RANDOM, URANDOM) == [ALLOWED] * 5
    assert tenant.open(node.gpu("nvidia1"), node.gpu("nvidia0")) == [NO_DRIVER, DENIED]
    assert tenant.open(node.gpu("loop"), node.gpu("kmsg")) == [DENIED] * 2
    assert opens(node.filter(gpus=[1], deny_others=True)) == {"b 7:0": 1, "c 1:11": 1, "c 195:0": 1}


def test_more_devices_than_are_counted_one_by_one(node):
    tenant = node.tenant()
    node.filter(gpus=[])
    for minor in range(1100):
        os.mknod(node.dev / f"many{minor}", stat.S_IFCHR | 0o666, os.makedev(195, 1000 + minor))
    assert set(tenant.open(*(node.dev / f"many{minor}" for minor in range(1100)))) == {DENIED}
    *each, rest = node.filter(gpus=[])["denied"]
    assert rest["device"] is None and {one["opens"] for one in each} == {1}
    assert len(each) + rest["opens"] == 1100 and rest["opens"] >= 1100 - 1024


@pytest.fixture
def other_program():
    """One that denies everything, as somebody else has it."""
    text = struct.pack("=BBhi", 0xB7, 0, 0, 0) + struct.pack("=BBhi", 0x95, 0, 0, 0)
    fd = kernel.load_program(15, text, "others")
    yield fd
    os.close(fd)


def attach(folder, program, flags):
    with open_folder(folder) as target:
        bpf(ATTACH, struct.pack("=IIII", target, program, 6, flags))


@contextlib.contextmanager
def open_folder(path):
    fd = os.open(path, os.O_RDONLY)
    yield fd
    os.close(fd)


def detach_all(folder):
    """As runc does with what it finds beside its own. How many would not go."""
    ids = (ctypes.c_uint32 * 16)()
    with open_folder(folder) as target:
        buffer = ctypes.create_string_buffer(struct.pack("=IIIIQI", target, 6, 0, 0, ctypes.addressof(ids), 16), 128)
        ctypes.CDLL(None, use_errno=True).syscall(321 if os.uname().machine == "x86_64" else 280, QUERY, ctypes.byref(buffer), len(buffer))
        count = struct.unpack_from("=I", buffer.raw, 24)[0]
        stayed = 0
        for number in ids[:count]:
            program = kernel.program_by_id(number)
            try:
                bpf(DETACH, struct.pack("=IIII", target, program, 6, 0))
            except OSError:
                stayed += 1
            finally:
                os.close(program)
    return count, stayed


def test_it_stands_beside_a_runtimes_own_and_neither_removes_the_other(node, other_program):
    tenant = node.tenant()
    node.filter(devices=[NULL])
    attach(node.cgroup.folder, other_program, MULTI)
    assert tenant.open(NULL, ZERO) == [DENIED] * 2
    assert opens(node.filter(devices=[NULL])) == {"c 1:5": 1}, "what the other denies is not our count"
    assert detach_all(node.cgroup.folder) == (2, 1)
    assert tenant.open(NULL, ZERO) == [ALLOWED, DENIED]
    attach(node.cgroup.folder, other_program, MULTI)
    node.filter(state="absent")
    assert tenant.open(NULL) == [DENIED]
    detach_all(node.cgroup.folder)


def test_beside_a_program_that_allows_no_other_it_is_refused(node, other_program):
    attach(node.cgroup.folder, other_program, 0)
    refused = node.filter(devices=[NULL], refused="not_stackable")
    assert "lets no other stand beside it" in refused["msg"] and not node.bpffs.exists()
    detach_all(node.cgroup.folder)


def test_what_is_left_of_cgroups_that_have_ended_goes_with_the_next_run(node):
    gone = node.cgroup.folder.with_name(f"{node.cgroup.folder.stem}-gone.service")
    gone.mkdir()
    node.filter(cgroup=f"/{gone.name}", gpus=[])
    number = str(gone.stat().st_ino)
    gone.rmdir()
    own = str(node.cgroup.folder.stat().st_ino)
    (node.bpffs / "devices" / own).mkdir()  # of a run that was killed
    wait_until(lambda: number in node.filter(gpus=[], check_mode=True)["before"]["left_over"], "the end of the cgroup")
    predicted = node.filter(gpus=[], check_mode=True)
    done = node.filter(gpus=[])
    assert predicted["before"]["left_over"] == done["before"]["left_over"] == sorted([number, own], key=int)
    assert [step["action"] for step in done["actions"]] == ["remove", "remove", "attach"] and done["after"] == predicted["after"]
    assert os.listdir(node.bpffs / "devices") == [own]


def test_a_filter_of_another_version_is_replaced(node, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(device_filter, "NAME", "gpuops_dev_0")
        node.filter(gpus=[])
    assert [step["action"] for step in node.filter(gpus=[])["actions"]] == ["replace"]
    assert node.filter(gpus=[])["changed"] is False


def test_a_run_that_fails_on_its_way_leaves_nothing(node, monkeypatch):
    tenant = node.tenant()
    pin = kernel.pin

    def refuse_the_link(fd, path):
        if path.endswith("/link"):
            raise kernel.ProbeError("no room")
        pin(fd, path)

    with monkeypatch.context() as patch:
        patch.setattr(kernel, "pin", refuse_the_link)
        node.filter(gpus=[], devices=[NULL], refused="probe_error")
    assert tenant.open(ZERO) == [ALLOWED] and not node.bpffs.exists()


def test_a_count_that_somebody_removed_is_told(node):
    """And no filter that is in force is taken for what is left of one."""
    node.filter(gpus=[])
    folder = node.bpffs / "devices" / str(node.cgroup.folder.stat().st_ino)
    (folder / "denied").unlink()
    assert f"to begin anew, remove {folder}/link" in node.filter(gpus=[], refused="probe_error")["msg"]
    (folder / "link").unlink()
    assert [step["action"] for step in node.filter(gpus=[])["actions"]] == ["remove", "attach"]


def test_refusals(node):
    def why(kind, **options):
        return node.filter(refused=kind, **options)["msg"]

    assert "mount -t bpf" in why("no_bpffs", gpus=[], bpffs_dir=str(node.folder / "bpf"))
    assert f"has no GPU GPU-1 here; it has {UUID} at 0000:00:06.0, GPU without a UUID" in why("no_device", gpus=["GPU-1"])
    assert "is the root" in why("not_proven", gpus=[], cgroup="/")
    assert "there is no cgroup /gone.service" in why("no_cgroup", gpus=[], cgroup="/gone.service")
    assert node.filter(state="absent", cgroup="/gone.service")["before"]["cgroup"] is None
    assert "is cgroup v1" in why("no_controller", gpus=[], cgroup_root=str(node.folder))
    assert not node.bpffs.exists()

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Device filters and a memory limit on a real GPU, by hand, as a Markdown table.

    ANSIBLE_COLLECTIONS=FOLDER_WITH_ansible_collections python3 tests/h200/device_filter.py > evidence.md

Wants root, cgroup v2, Linux 5.11, nvidia-ml-py, PyTorch and a GPU that nobody else uses. It calls what the modules cgroup_devices and cgroup_limits call.
The GPU's settings are left as they are; its cgroups, and the bpf filesystem where it had to be mounted, are removed at the end.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, os.environ.get("ANSIBLE_COLLECTIONS", str(Path(__file__).resolve().parents[2] / ".ansible/collections")))

from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.device_task import filter_devices
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.limit_task import LimitTask
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.limits import State
from ansible_collections.gpuops.remediation.plugins.module_utils._converge import converge
from ansible_collections.gpuops.remediation.plugins.module_utils._node.journal import Journal
from ansible_collections.gpuops.remediation.plugins.module_utils._node.node import Node

GIB = 1 << 30
ROOT = Path("/sys/fs/cgroup")
BPFFS = Path("/sys/fs/bpf")
TENANT, LIMITED = "/gpuops-tenant.service", "/gpuops-limited.service"
PLACES: dict[str, Any] = {
    "proc_root": "/proc",
    "dev_root": "/dev",
    "cgroup_root": str(ROOT),
    "kmsg_path": "/dev/kmsg",
    "nvml_library": "libnvidia-ml.so.1",
    "lock_token": None,
    "lock_holder": None,
    "incident_id": None,
    "why": "evidence",
    "protect": [],
    "timeout_seconds": 30.0,
}
INIT = """
import ctypes
cuda, count = ctypes.CDLL('libcuda.so.1'), ctypes.c_int(-1)
result = cuda.cuInit(0)
cuda.cuDeviceGetCount(ctypes.byref(count))
answer = [result, count.value]
"""
OPENS = """
import os, time
def opens(path, number):
    begun = time.perf_counter_ns()
    for _ in range(number):
        os.close(os.open(path, os.O_RDONLY))
    return (time.perf_counter_ns() - begun) / number
answer = [opens('/dev/null', 100000) for _ in range(7)]
"""
REFUSED = """
import os
answer = 0
for _ in range(1000):
    try:
        os.close(os.open('/dev/nvidia0', os.O_RDWR))
    except PermissionError:
        answer = answer + 1
"""
SWITCHED = """
import os, time
def refused(path):
    try:
        os.close(os.open(path, os.O_RDWR if 'ctl' in path else os.O_RDONLY))
        return False
    except PermissionError:
        return True
rounds = denied = opened = 0
print('null', flush=True)
while not os.path.exists({stop!r}):
    rounds, denied, opened = rounds + 1, denied + refused('/dev/nvidiactl'), opened + (not refused('/dev/nvidia-caps/nvidia-cap2'))
answer = [rounds, denied, opened]
"""
WORK = """
import json, sys
import torch
held = [torch.empty({gib} << 30, dtype=torch.uint8, device='cuda')]
torch.cuda.synchronize()
print('null', flush=True)
for line in sys.stdin:
    if line == 'work\\n':
        a = torch.randn(4096, 4096, device='cuda')
        held.append(torch.empty(1 << 30, dtype=torch.uint8, device='cuda'))
        print(json.dumps([bool(torch.isfinite(a @ a).all()), torch.cuda.memory_allocated() >> 30]), flush=True)
    else:
        host = []
        while True:
            host.append(bytearray(64 << 20))
            host[-1][:: 4096] = b'x' * len(host[-1][:: 4096])
"""


class Table:
    def __init__(self) -> None:
        self.rows: list[tuple[str, str]] = []

    def add(self, what: str, seen: object) -> None:
        self.rows.append((what, str(seen)))
        print(f"{what}: {seen}", file=sys.stderr, flush=True)

    def text(self) -> str:
        return "\n".join(["| what | seen |", "| --- | --- |", *(f"| {what} | {seen} |" for what, seen in self.rows)])


@contextlib.contextmanager
def program(code: str, cgroup: str | None) -> Iterator[subprocess.Popen[str]]:
    """Which first enters the cgroup. Code that sets `answer` prints it at its end."""
    enter = f"open({str(ROOT / cgroup[1:] / 'cgroup.procs')!r}, 'w').write('0')\n" if cgroup else ""
    whole = f"{enter}{code}\nimport json\nprint(json.dumps(answer))" if "answer = " in code else enter + code
    with subprocess.Popen([sys.executable, "-c", whole], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def answer(process: subprocess.Popen[str]) -> Any:
    assert process.stdout
    return json.loads(process.stdout.readline())


def tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin
    process.stdin.write(line + "\n")
    process.stdin.flush()


def run(code: str, cgroup: str | None = TENANT) -> Any:
    with program(code, cgroup) as process:
        return answer(process)


def devices(**options: Any) -> dict[str, Any]:
    """What the module cgroup_devices would answer."""
    defaults = {"state": "present", "gpus": None, "mig_instances": None, "devices": None, "modeset": False, "deny_others": False}
    target = {"cgroup": TENANT, "unit": None, "container": None, "pid": None, "start_ticks": None, "bpffs_dir": str(BPFFS / "gpuops")}
    return filter_devices({**PLACES, **defaults, **target, **options}, False)


def limit(cgroup: str, **limits: Any) -> dict[str, Any]:
    """What the module cgroup_limits would answer."""
    target = {"cgroup": cgroup, "unit": None, "container": None, "pid": None, "start_ticks": None}
    params = {**PLACES, **target, "state": "present", "limits": limits, "persistent": False, "force": False, "step_down": False}
    node = Node.from_params(params)
    task = LimitTask(node, params, None, Journal.from_params(node, params), lambda: None)
    return converge(task.read, task.plan, task.predict, task.apply, check_mode=False).result(State.show)


def names(entries: list[dict[str, Any]]) -> str:
    return ", ".join(f"{one['path'] or one['device']} {one['opens']}x" if "opens" in one else str(one["path"]) for one in entries) or "none"


def judged(found: list[int]) -> str:
    return f"cuInit {found[0]}, {max(found[1], 0)} GPUs"


def show_filter(table: Table, gpu: str) -> None:
    table.add("no filter: inside / outside", f"{judged(run(INIT))} / {judged(run(INIT, None))}")
    begun = time.perf_counter()
    closed = devices(gpus=[])
    table.add("`gpus: []` attached (read, plan, attach, read again)", f"{(time.perf_counter() - begun) * 1e3:.1f} ms")
    table.add("majors that it guards", closed["after"]["filter"]["guarded_majors"])
    table.add("closed: inside / outside", f"{judged(run(INIT))} / {judged(run(INIT, None))}")
    table.add("what it denied", names(devices(gpus=[])["denied"]))
    refused = run(REFUSED)
    table.add("1000 openings of /dev/nvidia0 inside: refused, and all counts then", f"{refused}; {names(devices(gpus=[])['denied'])}")
    opened = devices(gpus=[gpu])
    allowed = [one["device"] for one in opened["after"]["filter"]["allowed"]]
    table.add("one GPU allowed", names(opened["after"]["filter"]["allowed"]))
    before = {one["device"]: one["opens"] for one in opened["denied"]}
    table.add("open: inside", judged(run(INIT)))
    now = [one for one in devices(gpus=[gpu])["denied"] if one["opens"] > before.get(one["device"], 0)]
    table.add(
        "what a CUDA process with its GPU is denied still",
        names([{**one, "opens": one["opens"] - before.get(one["device"], 0)} for one in now]),
    )
    for left_out in allowed:
        devices(devices=[one for one in allowed if one != left_out])
        path = next(one["path"] for one in opened["after"]["filter"]["allowed"] if one["device"] == left_out)
        table.add(f"the same without {path}: inside", judged(run(INIT)))


def show_descriptors(table: Table, gpu: str) -> None:
    devices(gpus=[gpu])
    with program(WORK.format(gib=4), TENANT) as worker:
        answer(worker)
        tell(worker, "work")
        table.add("PyTorch inside with its GPU: a product is right, GiB held", answer(worker))
        closed = devices(gpus=[])
        table.add(
            "then closed: still open and reported",
            f"{len(closed['still_open'])}: {', '.join(sorted({one['path'] for one in closed['still_open']}))}",
        )
        table.add("of that process", {one["pid"] for one in closed["still_open"]} == {worker.pid})
        tell(worker, "work")
        table.add("its open descriptors keep working: another product, another GiB", answer(worker))
        table.add("a new process beside it", judged(run(INIT)))
    table.add("once it has ended, still open", len(devices(gpus=[])["still_open"]))


def show_switch(table: Table, gpu: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        stop = Path(folder, "stop")
        devices(gpus=[gpu])
        with program(SWITCHED.format(stop=str(stop)), TENANT) as worker:
            answer(worker)
            took = []
            for number in range(100):
                begun = time.perf_counter()
                devices(gpus=[gpu], modeset=number % 2 == 0)
                took.append(time.perf_counter() - begun)
            stop.touch()
            rounds, denied, opened = answer(worker)
    table.add("100 changes of the list, each (median)", f"{statistics.median(took) * 1e3:.1f} ms")
    table.add(
        "meanwhile opened in turn: nvidiactl (in every list) denied, nvidia-cap2 (in none) opened",
        f"{denied} and {opened} of {rounds} each",
    )


def show_cost(table: Table) -> None:
    devices(state="absent")
    without = statistics.median(run(OPENS))
    devices(gpus=[])
    table.add("open and close of /dev/null: without / with a filter", f"{without:.0f} / {statistics.median(run(OPENS)):.0f} ns")


def show_absent(table: Table) -> None:
    gone = devices(state="absent")
    pinned = "is still there" if (BPFFS / "gpuops").exists() else "is gone"
    table.add("`state: absent`", f"filter {gone['after']['filter']}, the folder below {BPFFS} {pinned}")
    table.add("after it: inside", judged(run(INIT)))


def used(nvml: Any) -> int:
    return int(nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByIndex(0)).used)


def show_limit(table: Table, nvml: Any, gib: int = 40) -> None:
    """The kernel's kill, and how long the driver takes for the rest."""
    limit(LIMITED, memory_max="6G", memory_swap_max="0")
    events = ROOT / LIMITED[1:] / "memory.events"
    for _attempt in range(3):
        kills = oom_kills(events)
        before = used(nvml)
        with program(WORK.format(gib=gib), LIMITED) as worker:
            answer(worker)
            held = used(nvml)
            tell(worker, "fill the host's memory")
            while oom_kills(events) == kills and worker.poll() is None:
                time.sleep(0.001)
            killed = time.perf_counter()
            status = worker.wait()
            ended = time.perf_counter()
            while used(nvml) > before + (64 << 20) and time.perf_counter() < ended + 30:
                time.sleep(0.001)
            back = time.perf_counter()
        table.add(
            "`memory_max: 6G`, a process with GPU memory fills the host's: exit status, oom_kill",
            f"{status}, {oom_kills(events) - kills}",
        )
        table.add("GPU memory in use: before, while it ran, after", f"{before >> 20}, {held >> 20}, {used(nvml) >> 20} MiB")
        table.add(
            "from the kernel's count of the kill to the end of the process / to its GPU memory free",
            f"{ended - killed:.2f} / {back - killed:.2f} s",
        )


def oom_kills(events: Path) -> int:
    return int(dict(line.split() for line in events.read_text().splitlines())["oom_kill"])


@contextlib.contextmanager
def bpffs() -> Iterator[None]:
    if "cafe4a11" in subprocess.run(["stat", "-f", "-c", "%t", BPFFS], capture_output=True, text=True, check=True).stdout:
        yield
        return
    subprocess.run(["mount", "-t", "bpf", "bpf", BPFFS], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", BPFFS], check=True)


@contextlib.contextmanager
def cgroups() -> Iterator[None]:
    (ROOT / TENANT[1:]).mkdir()
    try:
        yield
    finally:
        devices(state="absent")
        for path in (TENANT, LIMITED):
            with contextlib.suppress(FileNotFoundError):
                (ROOT / path[1:]).rmdir()


def main() -> None:
    import pynvml

    pynvml.nvmlInit()
    gpu = str(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(0)))
    table = Table()
    with tempfile.TemporaryDirectory() as state, bpffs():
        PLACES["state_dir"] = state
        with cgroups():
            show_filter(table, gpu)
            show_descriptors(table, gpu)
            show_switch(table, gpu)
            show_cost(table)
            show_absent(table)
            show_limit(table, pynvml)
    driver, now = pynvml.nvmlSystemGetDriverVersion(), datetime.datetime.now(datetime.timezone.utc)
    print(f"Driver {driver}, kernel {os.uname().release}, {now:%Y-%m-%d %H:%M} UTC.\n\n{table.text()}")


if __name__ == "__main__":
    main()

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The eBPF probes on a real GPU, by hand, as Markdown tables: what they count beside what PyTorch and NVML say, and what they cost.

Wants root, a GPU that nobody else uses, a bpf filesystem, libbpf.so.1, gcc, and a Python with PyTorch, transformers, CuPy, nvidia-ml-py
and prometheus_client:

    mount -t bpf bpf /sys/fs/bpf; python3 tests/h200/probes.py > evidence.md

The probes are those that ship, attached by the code of `ebpf_probe` where it finds libcuda by itself. They are removed at the end. No
setting of the GPU is changed, and nothing is reset. A real application fault is caused.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import datetime
import json
import multiprocessing
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from checkout import make_importable

HERE = Path(__file__).resolve().parent
ALLOCATORS = {"default": "", "expandable segments": "expandable_segments:True", "cudaMallocAsync": "backend:cudaMallocAsync"}
OF_THE_GPU = ("device", "managed", "pool", "handle")
MIB = 1 << 20
PORT = 9410
NOBODY = 65534


def table(title: str, *rows: Sequence[Any]) -> None:
    head, *rest = rows
    lines = [head, ["---"] * len(head), *rest]
    print(
        f"\n## {title}\n\n" + "\n".join("| " + " | ".join(str(one).replace("|", "/") for one in line) + " |" for line in lines), flush=True
    )


class Probes:
    """The probes of this machine, as ebpf_probe has them."""

    def __init__(self, folder: Path) -> None:
        self.top = Path("/sys/fs/bpf/gpuops")
        self.maps = self.top / "cuda_mem/maps"
        self._params = {
            "probes": ["cuda_mem", "gpu_xid"],
            "bpffs_dir": str(self.top),
            "state_dir": str(folder / "state"),
            "proc_root": "/proc",
            "libraries": None,
            "attach": "auto",
            "max_allocations": 262144,
            "timeout_seconds": 30.0,
        }

    def bring(self, state: str, *probes: str) -> dict[str, Any]:
        from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.bring import bring

        return bring({**self._params, "state": state, "probes": list(probes) or self._params["probes"]}, False)

    def held(self, pid: int) -> tuple[dict[str, int], dict[str, int]]:
        """Bytes and living allocations by kind, of those that there are."""
        from ansible_collections.gpuops.remediation.plugins.module_utils._bpf import layout, memory

        usage = layout.Usage.sum(each.usage for each in memory.accounts(self.maps) if each.tgid == pid)
        return tuple({kind: number for kind, number in by_kind.items() if number} for by_kind in (usage.held_bytes, usage.live))

    def counters(self) -> dict[str, int]:
        from ansible_collections.gpuops.remediation.plugins.module_utils._bpf import memory

        return memory.counters(self.maps)

    def failures(self) -> list[str]:
        from ansible_collections.gpuops.remediation.plugins.module_utils._bpf import memory

        return [f"{one['operation']} {one['result']}: {one['count']}" for one in memory.failures(self.maps)]


@contextlib.contextmanager
def working(what: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(HERE / "probes_work.py"), what]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}) as process:
        try:
            yield process
        finally:
            process.kill()


def told(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Its next line; nothing once it has ended."""
    line = process.stdout.readline() if process.stdout else ""
    return json.loads(line) if line else {}


def say(process: subprocess.Popen[str], line: str = "") -> None:
    assert process.stdin
    process.stdin.write(line + "\n")
    process.stdin.flush()


class Gpu:
    def __init__(self) -> None:
        import pynvml

        self._nvml = pynvml
        pynvml.nvmlInit()
        self.handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        self.pci = str(pynvml.nvmlDeviceGetPciInfo(self.handle).busId).lower()
        self.about = f"{pynvml.nvmlDeviceGetName(self.handle)}, driver {pynvml.nvmlSystemGetDriverVersion()}"

    def used_by(self, pid: int) -> int:
        return sum(one.usedGpuMemory for one in self._nvml.nvmlDeviceGetComputeRunningProcesses(self.handle) if one.pid == pid)


def copies(probes: Probes, brought: dict[str, Any], seconds: float) -> None:
    """Where libcuda was found, and how its functions begin."""
    from ansible_collections.gpuops.remediation.plugins.module_utils._bpf import elf, entry, functions

    rows = [
        ("what", "seen"),
        (
            "attached in",
            f"{seconds:.2f} s, {len(brought['after']['cuda_mem']['links'])} + {len(brought['after']['gpu_xid']['links'])} links",
        ),
    ]
    for copy in brought["copies"]:
        rows.append((f"{copy['path']}, build id {copy['build_id'][:12]}", f"{copy['functions']} of {len(functions.COOKIES)} functions"))
        fd = os.open(copy["path"], os.O_RDONLY)
        try:
            library = elf.parse(lambda offset, size, fd=fd: os.pread(fd, size, offset), functions.COOKIES)
        finally:
            os.close(fd)
        shapes = collections.Counter(
            f"`{one.entry[:12].hex(' ')}`, probed at +{entry.probe_offset(library.machine, one.entry)}"
            for one in library.functions.values()
        )
        rows += [(f"begin with {shape}", count) for shape, count in shapes.most_common(6)]
        rows.append(("functions that it lacks", ", ".join(sorted(set(functions.COOKIES) - set(library.functions))) or "none"))
    rows += [(f"not probed: {one['path']}", one["why"]) for one in brought["not_probed"]]
    table("The probes", *rows)


def allocators(probes: Probes, gpu: Gpu) -> None:
    for name, setting in ALLOCATORS.items():
        began = probes.counters()
        rows: list[Sequence[Any]] = [("step", "probes", "PyTorch", "difference", "living", "NVML", "NVML - probes")]
        with working("memory", PYTORCH_CUDA_ALLOC_CONF=setting) as process:
            while now := told(process):
                held, live = probes.held(process.pid)
                ours, nvml = sum(held.get(kind, 0) for kind in OF_THE_GPU), gpu.used_by(process.pid)
                by_kind = ", ".join(f"{kind} {size}" for kind, size in held.items()) or "0"
                rows.append(
                    (
                        now["what"],
                        by_kind,
                        now["own"],
                        ours - now["own"],
                        live or "-",
                        nvml,
                        f"{nvml - ours} ({(nvml - ours) / MIB:.0f} MiB)",
                    )
                )
                say(process)
            process.wait()
        time.sleep(0.2)
        left, _live = probes.held(process.pid)
        counted = {key: value - began[key] for key, value in probes.counters().items() if value != began[key]}
        rows.append(("ended", left or "0", "", "", "", gpu.used_by(process.pid), ""))
        table(f"PyTorch, {name}", *rows)
        print(f"\nCounters: {counted}. Failures so far: {probes.failures()}.", flush=True)


def xids(probes: Probes, gpu: Gpu) -> None:
    from ansible_collections.gpuops.remediation.plugins.module_utils._bpf import xids as counted
    from ansible_collections.gpuops.remediation.plugins.module_utils._exporter import xids as logged
    from ansible_collections.gpuops.remediation.plugins.module_utils._node import kernel_log
    from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import ProcFs

    maps = probes.top / "gpu_xid/maps"
    proc, items, since = ProcFs("/proc"), [], time.time()
    with working("crash") as process:
        error = told(process).get("error")
        say(process)
        process.wait()
        time.sleep(2)
    kernel_log.collect("/dev/kmsg", proc.boot_time(), proc.boot_id(), since - 5, items.append)
    rows: list[Sequence[Any]] = [("source", "PCI address", "Xid", "seen")]
    rows += [
        ("probes", one.pci_bus_id, one.xid, f"{one.count} error, {one.lines} lines of the log, {one.traces} of the tracepoint")
        for one in counted.counts(maps)
    ]
    rows += [
        ("kernel log, by the exporter's reader", one["pci_bus_id"], one["code"], f"{one['count']} lines")
        for one in logged.counted(logged.NONE, items, since, time.time())["counts"]
    ]
    rows += [("event", one.pci_bus_id, one.xid, f"{one.source}, {one.boottime_ns / 1e9:.6f}: {one.text}") for one in counted.events(maps)]
    rows.append(("NVML's address", gpu.pci, "", ""))
    rows.append(("the process was told", "", "", error))
    table("An application's fault", *rows)
    print(f"\nCounters: {counted.counters(maps)}.", flush=True)


def cost(probes: Probes, folder: Path, rounds: int, library: str) -> float:
    """Nanoseconds by which a call of the asynchronous kind is longer: calls of the others take longer than any probe, and vary by more."""
    subprocess.run(["gcc", "-O2", "-o", folder / "calls", HERE / "calls.c", "-ldl"], check=True)
    rows: list[Sequence[Any]] = [("a round of", "without, ns", "with, ns", "longer by", "a probed call", "its programs, ns a run")]
    kinds = {"async": ("cuMemAllocAsync, cuMemFreeAsync (4 KiB)", 20000, 2), "alloc": ("cuMemAlloc, cuMemFree (2 MiB)", 2000, 2)}
    kinds["set"] = ("cuCtxSetCurrent", 50000, 1)
    took: dict[tuple[str, bool], list[float]] = collections.defaultdict(list)
    program: dict[str, str] = {}
    longer: dict[str, float] = {}
    with subprocess.Popen([folder / "calls", library], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        process.stdout.readline()
        for _round in range(rounds):
            for attached in (False, True):
                probes.bring("present" if attached else "absent", "cuda_mem")
                for kind, (_name, calls, _hits) in kinds.items():
                    say(process, f"{kind} {calls}")
                    took[kind, attached].append(float(process.stdout.readline()))
        with statistics_of_the_kernel():
            for kind, (_name, calls, _hits) in kinds.items():
                before = runs(probes)
                say(process, f"{kind} {calls}")
                process.stdout.readline()
                program[kind] = ", ".join(f"{name} {value}" for name, value in per_run(before, runs(probes)).items())
        process.kill()
    for kind, (name, _calls, hits) in kinds.items():
        without, with_them = (statistics.median(took[kind, attached]) for attached in (False, True))
        each = (with_them - without) / hits
        longer[kind] = each
        rows.append(
            (
                name,
                *(spread(took[kind, attached]) for attached in (False, True)),
                f"{with_them - without:.0f} ns",
                f"{each:.0f} ns",
                program[kind],
            )
        )
    table(f"What a call costs, {rounds} times with and without, medians", *rows)
    return longer["async"]


@contextlib.contextmanager
def statistics_of_the_kernel() -> Iterator[None]:
    setting = Path("/proc/sys/kernel/bpf_stats_enabled")
    before = setting.read_text()
    setting.write_text("1")
    try:
        yield
    finally:
        setting.write_text(before)


def runs(probes: Probes) -> dict[str, tuple[int, int]]:
    from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.info import describe
    from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import ProcFs

    links = describe(str(probes.top), "cuda_mem", ProcFs("/proc"))["links"]
    return {link["name"].rpartition("_")[2]: (link["run_time_ns"] or 0, link["runs"] or 0) for link in links}


def per_run(before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]]) -> dict[str, int]:
    gone = {name: (after[name][0] - before[name][0], after[name][1] - before[name][1]) for name in after}
    return {name: round(spent / count) for name, (spent, count) in gone.items() if count > 100 and name in ("enter", "leave")}


def spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.0f} ({min(values):.0f} to {max(values):.0f})"


def model(probes: Probes, allocator: str, pairs: int, tokens: int, nanoseconds: float) -> None:
    """Pairs of runs, one with and one without, the order changing from pair to pair. After each change a short run that does not count."""
    speed: dict[bool, list[float]] = {False: [], True: []}
    calls, hits, spent = 0, 0, 0.0
    with working("model", PYTORCH_CUDA_ALLOC_CONF=ALLOCATORS[allocator]) as process:
        parameters = told(process)["parameters"]

        def run(new: int) -> float:
            say(process, str(new))
            return float(told(process)["seconds"])

        for _warming in range(3):
            run(tokens)
        for number in range(pairs):
            for attached in (number % 2 == 0, number % 2 == 1):
                if probes.bring("present" if attached else "absent", "cuda_mem")["changed"]:
                    run(8)
                before = probes.counters()["calls"] if attached else 0
                seconds = run(tokens)
                speed[attached].append(8 * tokens / seconds)
                if attached:
                    calls, spent = calls + probes.counters()["calls"] - before, spent + seconds
        probes.bring("present", "cuda_mem")
        with statistics_of_the_kernel():
            begun = runs(probes)
            for_hits = run(tokens)
            hits = sum(count - begun[name][1] for name, (_time, count) in runs(probes).items() if name in ("enter", "leave"))
    ratios = [with_them / without for with_them, without in zip(speed[True], speed[False])]
    low, high = bounds(ratios)
    table(
        f"A model of {parameters / 1e9:.2f} billion parameters, {allocator}: {pairs} pairs of runs of {tokens} tokens for each of 8 sequences",
        ("what", "seen"),
        ("tokens/s without", spread(speed[False])),
        ("tokens/s with", spread(speed[True])),
        ("the fastest, with over without", f"{100 * max(speed[True]) / max(speed[False]):.2f} %"),
        (
            "with over without, pair by pair: median",
            f"{100 * statistics.median(ratios):.2f} %, from {100 * min(ratios):.1f} to {100 * max(ratios):.1f} %",
        ),
        ("where that median is with 95 % confidence (bootstrap)", f"{100 * low:.2f} to {100 * high:.2f} %"),
        ("probed calls", f"{calls / spent:.1f} a second"),
        ("programs run, every process's, as the kernel counts them", f"{hits / for_hits:.1f} a second"),
        (
            f"the calls times {nanoseconds:.0f} ns, what cuMemAllocAsync is longer by",
            f"{100 * calls / spent * nanoseconds / 1e9:.4f} % of the time",
        ),
    )


def bounds(values: Sequence[float]) -> tuple[float, float]:
    chance = random.Random(0)
    medians = sorted(statistics.median(chance.choices(values, k=len(values))) for _sample in range(2000))
    return medians[50], medians[-51]


def readings(folder: Path) -> None:
    """What one reading of NVML takes, as the exporter and gpu_info make it, with its child. In a process that has not opened NVML itself."""
    from ansible_collections.gpuops.remediation.plugins.module_utils._gpu import info, nvml
    from ansible_collections.gpuops.remediation.plugins.module_utils._node.node import Node
    from ansible_collections.gpuops.remediation.plugins.module_utils._node.watchdog import Watchdog

    node = Node.from_params(paths(folder))
    watchdog = Watchdog(node.state, 4.0)

    def exporters() -> None:
        answers, _left = watchdog.collect(
            {"nvml": partial(nvml.collect, node.nvml_library, [], None), "driver": partial(info.driver_files, node)}
        )
        assert answers["nvml"].why is None, answers["nvml"].why

    def gpu_info() -> None:
        found = info.read(node, [], timeout_seconds=10.0)
        assert not found["missing"], found["missing"]

    table(
        "A reading",
        ("of", "took, ms: median of 20 (from to)"),
        ("NVML, by the exporter", timed(exporters, 20)),
        ("everything, by gpu_info, without Ansible", timed(gpu_info, 20)),
    )


@contextlib.contextmanager
def exporting(folder: Path, probes: Probes) -> Iterator[Callable[[], dict[str, Any]]]:
    """The exporter's one file, as its role has it: nobody serves, root reads when it is asked to. Gives what makes root read and answers the page."""
    from ansible_collections.gpuops.remediation.plugins.module_utils import _program
    from ansible_collections.gpuops.remediation.plugins.module_utils._exporter import program
    from prometheus_client.parser import text_string_to_metric_families

    place = folder / "exporter"
    for name in ("node", "watch"):
        (place / name).mkdir(parents=True)
    os.chown(place / "watch", NOBODY, NOBODY)
    file, config = place / "gpuops-exporter", place / "exporter.json"
    file.write_bytes(_program.build(program.__name__, "/usr/bin/python3 -I", ("prometheus_client", "pynvml")))
    file.chmod(0o755)
    settings = {
        "node_name": "h200", "host": "127.0.0.1", "port": PORT, "certfile": "", "keyfile": "", "cafile": "", "interval_seconds": 5,
        "nvml_timeout_seconds": 4, "max_owners": 1000, "bpffs_dir": str(probes.top), "state_file": str(place / "node/state.json"),
        "watch_dir": str(place / "watch"), "node": paths(folder),
    }  # fmt: skip
    config.write_text(json.dumps(settings))

    def read() -> dict[str, Any]:
        environment = {**os.environ, program.UNPACK_DIR: str(place / "cache")}
        subprocess.run([file, "state", config], env=environment, check=True)
        (place / "node/state.json").chmod(0o644)
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics") as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        return {f"{one.name}{one.labels}": one for family in families for one in family.samples}

    with subprocess.Popen(
        [file, "export", config], stdout=subprocess.PIPE, text=True, user=NOBODY, group=NOBODY, extra_groups=[]
    ) as process:
        assert process.stdout
        try:
            assert process.stdout.readline().startswith("ready")
            yield read
        finally:
            process.terminate()


def exporter(folder: Path, probes: Probes, seconds: int) -> None:
    """What it costs, and its page beside what a process of PyTorch's knows."""
    with exporting(folder, probes) as read, working("memory") as process:
        now = told(process)
        while now["what"] != "every second one freed":
            say(process)
            now = told(process)
        read()
        time.sleep(7)  # so that the next page has it
        began, first = time.monotonic(), read()
        for _reading in range(seconds // 10):
            time.sleep(10)
            last = read()
        took = time.monotonic() - began
    rows: list[Sequence[Any]] = [("what", "seen")]
    for part in ("exporter", "state"):
        (spent,) = (
            last[key].value - first[key].value
            for key in last
            if "cpu_seconds" in key and last[key].labels.get("part") == part and key in first
        )
        (resident,) = (last[key].value for key in last if "resident" in key and last[key].labels["part"] == part)
        what = {"exporter": "the exporter, with its readings of NVML every 5 s", "state": f"root's reader, {seconds // 10} times"}[part]
        rows.append((f"{what}: of one core, and most memory", f"{100 * spent / took:.2f} % over {took:.0f} s, {resident / MIB:.0f} MiB"))
    rows.append((f"PyTorch's own number of pid {process.pid}", now["own"]))
    shown = (
        "gpuops_process",
        "gpuops_container",
        "gpuops_memory",
        "gpuops_probe",
        "gpuops_xid_events",
        "gpuops_gpu_memory",
        "gpuops_gpu_oom",
        "gpuops_source_up",
    )
    for one in last.values():
        if one.name.startswith(shown) and (one.value or "uncounted" not in one.name):
            labels = ", ".join(f"{name}={value}" for name, value in one.labels.items() if value and name not in ("node", "gpu_uuid"))
            rows.append((f"`{one.name}` {labels}", f"{one.value:.6g}" if one.value % 1 else f"{one.value:.0f}"))
    table("The exporter", *rows)


def timed(work: Callable[[], None], times: int) -> str:
    took = []
    for _time in range(times):
        began = time.perf_counter()
        work()
        took.append(1000 * (time.perf_counter() - began))
    return spread(took)


def paths(folder: Path) -> dict[str, str]:
    return {
        "state_dir": str(folder / "state"), "kmsg_path": "/dev/kmsg", "proc_root": "/proc", "dev_root": "/dev",
        "cgroup_root": "/sys/fs/cgroup", "nvml_library": "libnvidia-ml.so.1",
    }  # fmt: skip


SECTIONS = ("readings", "allocators", "xids", "exporter", "cost", "model", "pool")


def measure(folder: Path, given: argparse.Namespace) -> None:
    gpu, probes = Gpu(), Probes(folder)
    print(f"# eBPF probes on a real GPU, {datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC\n")
    print(f"{gpu.about}, kernel {os.uname().release}, {os.cpu_count()} CPUs, Python {sys.version.split()[0]}.", flush=True)
    began = time.monotonic()
    try:
        copies(probes, probes.bring("present"), time.monotonic() - began)
        if "readings" in given.only:  # this process has NVML open, and a child of its own would not be answered
            reader = multiprocessing.get_context("spawn").Process(target=apart, args=(str(folder),))
            reader.start()
            reader.join()
        if "allocators" in given.only:
            allocators(probes, gpu)
        if "xids" in given.only:
            xids(probes, gpu)
        if "exporter" in given.only:
            exporter(folder, probes, 60)
        nanoseconds = cost(probes, folder, given.rounds, given.libcuda) if "cost" in given.only else 0.0
        if "model" in given.only:
            model(probes, "default", given.pairs, given.tokens, nanoseconds)
        if "pool" in given.only:
            model(probes, "cudaMallocAsync", given.pairs // 4, given.tokens, nanoseconds)
    finally:
        probes.bring("absent")
    left = sorted(str(path) for path in probes.top.rglob("*")) if probes.top.exists() else []
    print(f"\nLeft in {probes.top.parent} at the end: {left or 'nothing'}. All of it took {time.monotonic() - began:.0f} s.")


def apart(folder: str) -> None:
    sys.path[:0] = [folder]
    readings(Path(folder))


def main() -> None:
    options = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    options.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS)
    options.add_argument("--pairs", type=int, default=60)
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--tokens", type=int, default=64, help="new ones of each sequence")
    options.add_argument("--libcuda", default="libcuda.so.1")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        make_importable(Path(folder))
        measure(Path(folder), options.parse_args())


if __name__ == "__main__":
    main()

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a real GPU answers about MIG beside what the tables and the simulator say, by hand, as a Markdown table.

    PYTHONPATH=FOLDER_WITH_PYNVML python3 tests/h200/mig_read_only.py > evidence.md

It only reads: no mode is set, nothing is created or destroyed. Nothing but nvidia-ml-py is needed, and root for the places of profiles.
With MIG on it also compares what the GPU instances that there are can be divided into.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from checkout import ROOT, make_importable

SIMULATOR = ROOT / "roles/simulated_gpu_node/files"
QUERIES = 32
NOTHING = "-"
ENGINES = ("copyEngineCount", "decoderCount", "encoderCount", "jpegCount", "ofaCount")
COMPUTE_ENGINES = tuple(f"shared{one[0].upper()}{one[1:]}" for one in ENGINES)
# what the simulator answers with MIG off
OFF = {"max MIG devices": "0", "MIG device 0": "NotFound", "GPU instances of profile 0": "0", "GPU instance 0": "NotFound"}


class Table:
    def __init__(self) -> None:
        self.rows: list[tuple[str, str, str]] = []

    def add(self, asked: str, real: object, ours: object = NOTHING) -> None:
        self.rows.append((asked, str(real), str(ours)))

    @property
    def different(self) -> list[str]:
        return [asked for asked, real, ours in self.rows if ours not in (real, NOTHING)]

    def text(self) -> str:
        lines = ["| asked | real | ours | equal |", "| --- | --- | --- | --- |"]
        for asked, real, ours in self.rows:
            equal = NOTHING if ours == NOTHING else "yes" if real == ours else "**no**"
            lines.append(f"| {asked} | {real} | {ours} | {equal} |")
        return "\n".join(lines)


class Gpu:
    def __init__(self, nvml: Any, index: int) -> None:
        self.nvml = nvml
        self.handle = nvml.nvmlDeviceGetHandleByIndex(index)
        self.pci = nvml.nvmlDeviceGetPciInfo(self.handle)

    def ask(self, name: str, *args: Any) -> Any:
        """The answer, or the name of the refusal."""
        try:
            return getattr(self.nvml, name)(self.handle, *args)
        except self.nvml.NVMLError as error:
            return type(error).__name__.replace("NVMLError_", "")

    def field(self, number: int) -> int | str:
        [value] = self.nvml.nvmlDeviceGetFieldValues(self.handle, [number])
        return int(value.value.uiVal) if value.nvmlReturn == self.nvml.NVML_SUCCESS else f"refused with {value.nvmlReturn}"

    def placements(self, profile_id: int) -> str:
        count = ctypes.c_uint()
        refused = self.ask("nvmlDeviceGetGpuInstancePossiblePlacements", profile_id, None, ctypes.byref(count))
        if isinstance(refused, str):
            return refused
        room = (self.nvml.c_nvmlGpuInstancePlacement_t * count.value)()
        self.ask("nvmlDeviceGetGpuInstancePossiblePlacements", profile_id, room, ctypes.byref(count))
        return places([one.start, one.size] for one in room[: count.value])


def places(found: Iterable[Iterable[int]]) -> str:
    return " ".join(f"{start}:{size}" for start, size in sorted(found))


def profile_text(get: Callable[[str], Any], engines: tuple[str, ...]) -> str:
    head = f"id {get('id')}, {get('instanceCount')} at most, {get('sliceCount')} slices, {get('multiprocessorCount')} SM"
    memory = f", {get('memorySizeMB')} MB" if engines is ENGINES else ""
    return f"{head}{memory}, engines {'/'.join(str(get(one)) for one in engines)}"


def named(info: Any) -> str:
    name = info.name.decode() if isinstance(info.name, bytes) else info.name
    return str(name).replace("MIG ", "")


def simulated_model(device_id: int) -> dict[str, Any] | None:
    from gpusim import node

    models = (node.load_model(name) for name in node.MODEL_NAMES)
    return next((model for model in models if model["pci_device_id"] == device_id), None)


def compare_mode(gpu: Gpu, model: dict[str, Any] | None, table: Table) -> None:
    mode = gpu.ask("nvmlDeviceGetMigMode")
    table.add("MIG mode, current and pending", mode)
    for number, what in ((184, "the mode changes without a reset"), (199, "queries do not depend on the mode")):
        table.add(f"field {number}, {what}", gpu.field(number), model["fields"].get(str(number), "refused with 3") if model else NOTHING)
    if mode != [0, 0]:
        return
    count, room = ctypes.c_uint(), (gpu.nvml.c_nvmlGpuInstance_t * 8)()
    answers = (
        gpu.ask("nvmlDeviceGetMaxMigDeviceCount"),
        gpu.ask("nvmlDeviceGetMigDeviceHandleByIndex", 0),
        gpu.ask("nvmlDeviceGetGpuInstances", 0, room, ctypes.byref(count)),
        gpu.ask("nvmlDeviceGetGpuInstanceById", 0),
    )
    for (what, ours), real in zip(OFF.items(), answers):
        table.add(f"MIG off: {what}", real, ours)


def compare_profiles(gpu: Gpu, model: dict[str, Any] | None, table: Table) -> None:
    """The driver's structures with the simulator's, field by field."""
    from gpusim import mig

    empty = {"mig": {"instances": []}}
    refusals: dict[str, list[int]] = {}
    ours: dict[str, list[int]] = {}
    off = gpu.ask("nvmlDeviceGetMigMode") == [0, 0]
    for query in range(QUERIES):
        info = gpu.ask("nvmlDeviceGetGpuInstanceProfileInfo", query)
        known = model["mig"]["profiles"].get(str(query)) if model else None
        if model and not known:
            ours.setdefault("NotSupported" if query < model["mig"]["query_enums"] else "InvalidArgument", []).append(query)
        if isinstance(info, str):
            refusals.setdefault(info, []).append(query)
            continue
        name, own = named(info), known or {}
        table.add(f"query {query}, name", name, own["name"].replace("MIG ", "") if known else NOTHING)
        real = profile_text(lambda field, info=info: getattr(info, field), ENGINES)
        table.add(f"{name}, its structure", real, profile_text(own.get, ENGINES) if known else NOTHING)
        table.add(f"{name}, places", gpu.placements(info.id), places(own["placements"]) if known else NOTHING)
        left = gpu.ask("nvmlDeviceGetGpuInstanceRemainingCapacity", info.id)
        table.add(f"{name}, how many more", left, mig.remaining_capacity(model, empty, own) if model and known and off else NOTHING)
    for refusal in sorted({*refusals, *ours}):
        table.add(f"queries that answer {refusal}", refusals.get(refusal, []), ours.get(refusal, []) if model else NOTHING)


def compare_reading(gpu: Gpu, table: Table) -> Any:
    """What the collection makes of it, with the collection's tables."""
    from ansible_collections.gpuops.remediation.plugins.module_utils._mig import driver, tables

    reading = driver.read(gpu.nvml, gpu.handle)
    known = tables.model_of(gpu.pci.pciDeviceId >> 16)
    if reading.model is None or known is None:
        table.add("the collection's reading", "no MIG" if reading.model is None else "no table knows this GPU")
        return reading
    table.add("memory slices", reading.model.memory_slices, known.memory_slices)
    told, tabled = ({profile.name: profile for profile in one.profiles} for one in (reading.model, known))
    for name in sorted({*told, *tabled}):
        real, ours = (str(row(profiles[name])) if name in profiles else "no such profile" for profiles in (told, tabled))
        table.add(f"{name}, as planned with", real, ours)
    return reading


def row(profile: Any) -> str:
    return (
        f"query {profile.query}, id {profile.profile_id}, {profile.limit} at most, {profile.compute_slices} compute and {profile.memory_slices} "
        f"memory slices, starts {list(profile.starts)}, {profile.memory_mib} MiB, {profile.multiprocessors} SM"
    )


def compare_compute(gpu: Gpu, reading: Any, model: dict[str, Any] | None, table: Table) -> None:
    """Needs a GPU instance, whose handle the query takes."""
    from ansible_collections.gpuops.remediation.plugins.module_utils._mig import driver
    from gpusim import mig

    instances = reading.layout.instances if reading.layout else ()
    if not instances:
        table.add("what a GPU instance can be divided into", "not readable without one")
    for instance in instances:
        handle = gpu.nvml.nvmlDeviceGetGpuInstanceById(gpu.handle, instance.id)
        profile_id = gpu.nvml.nvmlGpuInstanceGetInfo(handle).profileId
        known = mig.compute_profiles(model, mig.profile(model, profile_id)) if model else {}
        ours = {one["name"].replace("MIG ", ""): one for one in known.values()}
        for info in driver.compute_profiles(gpu.nvml, handle):
            name, own = named(info), ours.pop(named(info), {})
            told = driver.compute_placements(gpu.nvml, handle, info.id)
            where = "not told" if told is None else places([one.start, one.size] for one in told)
            real = profile_text(lambda field, info=info: getattr(info, field), COMPUTE_ENGINES)
            table.add(f"{instance.name}: {name}", real, profile_text(own.get, COMPUTE_ENGINES) if model else NOTHING)
            table.add(f"{instance.name}: {name}, places", where, places(own.get("placements", [])) if model else NOTHING)
        for name in ours:
            table.add(f"{instance.name}: {name}", "no such profile", "there is one")


def compare_files(proc_root: str, dev_root: str, table: Table) -> None:
    """The driver's files, and whether this process is found among those that have a GPU's device file open."""
    from ansible_collections.gpuops.remediation.plugins.module_utils._gpu import capabilities
    from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import ProcFs
    from gpusim import capabilities as simulated

    with tempfile.TemporaryDirectory() as folder:
        simulated.install(folder)
        for name in ("nvidia/capabilities/mig/config", "nvidia/capabilities/mig/monitor", "nvidia-caps/mig-minors"):
            real, ours = (lines(Path(root, "driver", name)) for root in (proc_root, os.path.join(folder, "proc")))
            brief = len(ours) > 5
            what = f"{len(real)} lines" if brief else ", ".join(real)
            same = f"{len(ours)} lines" if brief else ", ".join(ours)
            first = next((f"first difference: {one[0]} / {one[1]}" for one in zip(real, ours) if one[0] != one[1]), "")
            table.add(f"/proc/driver/{name}", f"{what} {first}".strip(), same)
    caps = Path(dev_root, "nvidia-caps")
    table.add(str(caps), sorted(one.name for one in caps.iterdir()) if caps.is_dir() else "missing")
    own = {os.readlink(f"/proc/self/fd/{one}") for one in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{one}")}
    table.add("device files that this process has open", sorted(one for one in own if one.startswith("/dev/nvidia")))
    for item in beside(lambda tell: capabilities.collect(ProcFs(proc_root), dev_root, tell))[1:]:
        holder = item["process"]["name"] + " (this process)" * (item["pid"] == os.getpid())
        table.add(f"holds {[list(one) for one in item['held']]}", holder)


def compare_module(gpu: Gpu, given: argparse.Namespace, folder: Path, table: Table) -> None:
    """What mig_info answers, read by a process of its own: the driver answers no child of one that has NVML open. Meanwhile a process holds the GPU."""
    from ansible_collections.gpuops.remediation.plugins.module_utils._mig import tables

    hold = "import ctypes; cuda = ctypes.CDLL('libcuda.so.1'); context = ctypes.c_void_p(); cuda.cuInit(0); "
    hold += "print(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0), flush=True); input()"
    params = {
        "state_dir": str(folder / "state"), "kmsg_path": "/dev/kmsg", "proc_root": given.proc_root, "dev_root": given.dev_root,
        "cgroup_root": "/sys/fs/cgroup", "nvml_library": given.nvml_library,
    }  # fmt: skip
    with subprocess.Popen(
        [sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as holder:
        assert holder.stdout
        holds = holder.stdout.readline().strip()
        table.add("a CUDA context beside it", holds or "there is no libcuda", "0" if holds else NOTHING)
        began = time.monotonic()
        asked = subprocess.run(
            [sys.executable, "-c", _MODULE, folder], input=json.dumps(params), capture_output=True, text=True, check=True
        )
        took = time.monotonic() - began
        holder.kill()
    told = json.loads(asked.stdout)
    (one,) = [each for each in told["gpus"] if each["index"] == given.gpu]
    known = tables.model_of(gpu.pci.pciDeviceId >> 16)
    table.add("mig_info: sources missing, readers left, errors", [told["missing"], told["abandoned"], one["errors"]], [[], [], []])
    table.add("mig_info: supported, mode, a change needs a reset", [one["supported"], one["mig"], one["mode_change_needs_reset"]])
    table.add("mig_info: known as, from", [one["model"], one["evidence"]], [known.name, "measured"] if known else NOTHING)
    for profile in one["profiles"]:
        real = f"{profile['limit']} at {profile['starts']}, {profile['memory_bytes'] >> 20} MiB, {profile['multiprocessors']} SM"
        ours = next((each for each in known.profiles if each.name == profile["name"]), None) if known else None
        as_tabled = f"{ours.limit} at {list(ours.starts)}, {ours.memory_mib} MiB, {ours.multiprocessors} SM" if ours else "no such profile"
        table.add(f"mig_info: {profile['name']}", real, as_tabled)
    table.add("mig_info: profiles", len(one["profiles"]), len(known.profiles) if known else NOTHING)
    kinds = sorted(each["type"] for each in one["holders"] if each["pid"] == holder.pid)
    expected = [["compute"] if holds else [], True]
    table.add("mig_info: that process holds the GPU as; the list is complete", [kinds, one["holders_complete"]], expected)
    table.add("mig_info: took, with Python's start", f"{took:.2f} s")


_MODULE = """
import json, sys
sys.path[:0] = sys.argv[1:]
from ansible_collections.gpuops.remediation.plugins.module_utils._mig import info
from ansible_collections.gpuops.remediation.plugins.module_utils._node.node import Node
print(json.dumps(info.read(Node.from_params(json.load(sys.stdin)), [], timeout_seconds=20)))
"""


def beside(collect: Callable[[Callable[[Any], None]], None]) -> list[Any]:
    """What a child tells: one that looks for holders takes its own parent's other children for readers like itself."""
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()

    def run() -> None:
        try:
            collect(queue.put)
        finally:
            queue.put(None)

    child = context.Process(target=run)
    child.start()
    told = list(iter(queue.get, None))
    child.join()
    return told


def lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError as error:
        return [str(error.strerror)]


def main() -> None:
    options = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    options.add_argument("--nvml-library", default="libnvidia-ml.so.1")
    options.add_argument("--proc-root", default="/proc")
    options.add_argument("--dev-root", default="/dev")
    options.add_argument("--gpu", type=int, default=0, help="by NVML's number")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make_importable(Path(folder), SIMULATOR)
        ctypes.CDLL(given.nvml_library, ctypes.RTLD_GLOBAL)
        import pynvml

        pynvml.nvmlInit()
        gpu, table = Gpu(pynvml, given.gpu), Table()
        model = simulated_model(gpu.pci.pciDeviceId)
        compare_mode(gpu, model, table)
        compare_profiles(gpu, model, table)
        reading = compare_reading(gpu, table)
        compare_compute(gpu, reading, model, table)
        compare_files(given.proc_root, given.dev_root, table)
        compare_module(gpu, given, Path(folder), table)
        print(f"# MIG as an {reading.name} answers, {datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC\n")
        print(f"Driver {pynvml.nvmlSystemGetDriverVersion()}, kernel {os.uname().release}, PCI device {reading.device_id}.")
        print("Ours: the simulator's model of this PCI device, and below `as planned with` the planner's tables.\n")
        print(table.text())
        print(f"\n{len(table.rows)} rows, {len(table.different)} different: {', '.join(table.different) or 'none'}")
        if reading.model and reading.layout:
            from ansible_collections.gpuops.remediation.plugins.module_utils._mig.drawing import draw

            print(f"\n```\n{draw(reading.model, reading.layout)}```")


if __name__ == "__main__":
    main()

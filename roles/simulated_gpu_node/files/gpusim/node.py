# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One simulated node on disk: create it, put faults in, start processes, reset, reboot, destroy."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shlex
import shutil
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from . import build, capabilities, kmsg, mig, process
from .errors import CODES
from .state import StateFile, add_event, call_name, is_alive, start_ticks

MODELS = Path(__file__).parent / "models"
MODEL_NAMES = sorted(file.stem for file in MODELS.glob("*.json"))
MIB = 1 << 20
POD_RESOURCES = ("serves", "absent", "hangs", "unimplemented")  # how the kubelet's API does
# NVML's event types
ECC_EVENT, XID_EVENT, RECOVERY_EVENT = 0x2, 0x8, 0x8000
NAMESPACE = uuid.UUID("5e3c9d3a-6d50-5b0e-9d6e-67707573696d")  # ours, so that a node's GPUs have the same UUIDs wherever it is made


def no_faults() -> dict[str, Any]:
    return {"hang": {}, "no_permission": [], "fail": {}}


class SimulatorError(Exception):
    """A request that cannot be met, in words for who typed it."""


def load_model(name: str) -> dict[str, Any]:
    path = MODELS / f"{name}.json"
    if not path.is_file():
        raise SimulatorError(f"no model {name}: there are {', '.join(MODEL_NAMES)}")
    model: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if "extends" in model:
        base = load_model(model["extends"])
        model = {**base, **model, **{part: {**base[part], **model[part]} for part in ("answers", "mig")}}
    return model


class Node:
    """A node below a root folder; `Node(root, name)` needs not exist yet."""

    def __init__(self, root: Path, name: str, cache: Path | None = None) -> None:
        self.root, self.name, self.cache = root.resolve(), name, cache or build.default_cache()
        if not name or name.startswith(".") or "/" in name:
            raise SimulatorError(f"not a node name: {name!r}")
        self.path = self.root / name
        self.file = StateFile(str(self.path / "state.json"))
        self.kmsg = self.path / "dev" / "kmsg"
        self.nvml_library = self.path / "lib" / build.SONAME
        self.modprobe, self.smi = self.path / "sbin" / "nvidia-modprobe", self.path / "sbin" / "nvidia-smi"
        self.mps_control = self.path / "sbin" / "nvidia-cuda-mps-control"
        mark = hashlib.sha256(str(self.root).encode()).hexdigest()[:8]
        self.cgroups = process.cgroup_root() / f"gpusim-{mark}" / name

    @property
    def exists(self) -> bool:
        return Path(self.file.path).is_file()

    def state(self) -> dict[str, Any]:
        if not self.exists:
            raise SimulatorError(f"no simulated node {self.name} in {self.root}")
        return self.file.read()

    @property
    def model(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.path / "model.json").read_text(encoding="utf-8"))
        return found

    def change(self) -> contextlib.AbstractContextManager[dict[str, Any]]:
        """The state under its lock; what has died meanwhile is swept out first."""
        self.state()
        return self.file.update(self._sweep)

    def _sweep(self, state: dict[str, Any]) -> None:
        for dead in [entry for entry in state["processes"] if not is_alive(entry)]:
            state["processes"].remove(dead)
            self._forget(dead)

    def _forget(self, dead: dict[str, Any]) -> None:
        (self.path / "proc" / str(dead["pid"])).unlink(missing_ok=True)
        process.remove_cgroups(Path(dead["cgroup_path"]), self.cgroups)

    # -- life ----------------------------------------------------------------------------------------------------------

    def create(self, model_name: str = "h200-141", gpus: int = 8) -> None:
        if self.path.exists():
            raise SimulatorError(f"{self.path} exists already")
        model = load_model(model_name)
        if not 1 <= gpus <= len(model["pci_devices"]):
            raise SimulatorError(f"{model_name} makes nodes of 1 to {len(model['pci_devices'])} GPUs, not {gpus}")
        built = build.nvml_library(self.cache)
        for folder in ("dev/nvidia-caps", "proc/sys/kernel/random", "var/lib/gpuops", "var/lib/kubelet", "bin"):
            (self.path / folder).mkdir(parents=True)
        build.copy(built, self.nvml_library)
        build.copy(build.HERE / "nvidia-modprobe", self.modprobe)
        self._install_programs()
        (self.path / "model.json").write_text(json.dumps(model, indent=1), encoding="utf-8")
        state: dict[str, Any] = {
            "version": 1, "node": self.name, "model": model_name, "driver_version": model["answers"]["nvmlSystemGetDriverVersion"],
            "faults": {**no_faults(), "driver_not_loaded": False}, "event_sequence": 0, "instance_sequence": 0,
            "gpus": [self._gpu(model, index) for index in range(gpus)], "processes": [], "pods": {}, "device_plugin": None,
            "pod_resources": "serves", "given": {},
        }  # fmt: skip
        capabilities.install(str(self.path))
        for device in (
            "nvidiactl",
            *map(capabilities.device, (capabilities.CONFIG, capabilities.MONITOR)),
            *(f"nvidia{gpu['minor']}" for gpu in state["gpus"]),
        ):
            (self.path / "dev" / device).touch()
        for gpu in state["gpus"]:
            information = self.path / "proc/driver/nvidia/gpus" / gpu["pci_bus_id"] / "information"
            information.parent.mkdir(parents=True)
            information.write_text(
                f"Model: \t\t {model['answers']['nvmlDeviceGetName']}\nIRQ:   \t\t {model['answers']['nvmlDeviceGetIrqNum']}\n"
                f"GPU UUID: \t {gpu['uuid']}\nVideo BIOS: \t {model['answers']['nvmlDeviceGetVbiosVersion']}\nBus Type: \t PCIe\n"
                f"Bus Location: \t {gpu['pci_bus_id']}\nDevice Minor: \t {gpu['minor']}\nGPU Excluded:\t No\n",
                encoding="utf-8",
            )
        self._boot(state)
        self.file.write(state)

    def _install_programs(self) -> None:
        """Those that are Python, with the interpreter and the folder of this node."""
        package = ["env", f"PYTHONPATH={build.HERE.parent}", sys.executable, "-m"]
        smi = shlex.join([*package, "gpusim.nvidia_smi", str(self.path)])
        daemon = shlex.join([*package, "gpusim.mps_control", str(self.path), str(self.cache)])
        ask = shlex.join([sys.executable, "-I", "-S", str(build.HERE / "mps_ask.py")])
        for program, script in (
            (self.smi, f'exec {smi} "$@"'),
            (self.mps_control, f'[ $# != 0 ] || exec {ask}\nexec {daemon} "$@"'),
        ):
            program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
            program.chmod(0o755)

    def _gpu(self, model: dict[str, Any], index: int) -> dict[str, Any]:
        identity = uuid.uuid5(NAMESPACE, f"{self.name}/{index}")
        slot = model["pci_devices"][index]
        address = f"0000:00:{slot:02x}.0"
        gpu_uuid, serial = f"GPU-{identity}", f"165{identity.int % 10**10:010d}"
        return {
            "index": index, "minor": index, "uuid": gpu_uuid, "serial": serial, "pci_bus_id": address, "slot": model["module_ids"][index],
            "temperature_celsius": model["temperature_celsius"], "persistence": model["persistence"],
            "lost": False, "recovery_action": "none", "introduced": False, "faults": no_faults(),
            "ecc": {
                **{f"{kind}_{span}": 0 for kind in ("corrected", "uncorrected") for span in ("volatile", "aggregate")},
                "sram_threshold_exceeded": False,
            },
            "remapped_rows": {"correctable": 0, "uncorrectable": 0, "pending": False, "failure": False},
            "mig": {"current": 0, "pending": 0, "instances": []}, "events": [], "resets": [],
            "answers": {  # what this GPU answers itself; the model answers the rest
                "nvmlDeviceGetSerial": serial, "nvmlDeviceGetIndex": index,
                "nvmlDeviceGetMinorNumber": index, "nvmlDeviceGetModuleId": model["module_ids"][index], "nvmlDeviceGetBoardId": slot,
                "nvmlDeviceGetPdi": {"value": identity.int % (1 << 64)},
                "nvmlDeviceGetPciInfo_v3": {
                    "busIdLegacy": address, "domain": 0, "bus": 0, "device": slot, "pciDeviceId": model["pci_device_id"],
                    "pciSubSystemId": model["pci_subsystem_id"], "busId": "0000" + address,
                },
            },
        }  # fmt: skip

    def _boot(self, state: dict[str, Any]) -> None:
        state["boot"] = {"id": str(uuid.uuid4()), "time": int(time.time()), "kmsg_sequence": 0}
        (self.path / "proc/sys/kernel/random/boot_id").write_text(state["boot"]["id"] + "\n", encoding="ascii")
        (self.path / "proc/stat").write_text(f"btime {state['boot']['time']}\n", encoding="ascii")
        kmsg.boot(self.kmsg, state)

    def reboot(self) -> None:
        """A new boot: every process of the node is gone, and all that a GPU keeps in registers."""
        with self.change() as state:
            self._end(state, state["processes"])
            state["given"] = {uid: record["devices"] for uid, record in state["pods"].items()}  # the kubelet's checkpoint outlives it
            state["pods"] = {}
            if state["device_plugin"]:  # its pod starts again with the kubelet
                state["device_plugin"].update(pod=None, resources={})
            state["faults"] = {**no_faults(), "driver_not_loaded": False}
            for gpu in state["gpus"]:
                if self.model["mig"]["resetless"]:  # then the mode is the driver's, not the board's
                    gpu["mig"]["pending"] = 0
                self._power_up(gpu)
                gpu["answers"].pop("nvmlDeviceGetComputeMode", None)  # the mode is the driver's
                gpu["introduced"] = False
            for device in (self.path / "dev/nvidia-caps").iterdir():
                if device.name not in ("nvidia-cap1", "nvidia-cap2"):
                    device.unlink()
            self._boot(state)

    def reset(self, index: int, force: bool = False) -> None:
        """A GPU reset, recorded; refused, as by nvidia-smi, while a process holds the GPU."""
        with self.change() as state:
            gpu = self.select(state, index)
            holders = [f"{entry['name']} ({entry['pid']})" for entry in state["processes"] if index in entry["gpus"]]
            if holders and not force:
                raise SimulatorError(f"GPU {gpu['pci_bus_id']} is in use by another client: {', '.join(holders)}")
            self._power_up(gpu)
            gpu["resets"].append({"time": time.time(), "boot_id": state["boot"]["id"]})
            kmsg.reset(self.kmsg, state, gpu)

    def _power_up(self, gpu: dict[str, Any]) -> None:
        """What a reset or a power cycle clears. Rows marked for remapping are remapped by it; a failure to remap, worn-out
        on-chip memory and the aggregate counts stay."""
        gpu.update(lost=False, recovery_action="none", faults=no_faults())
        gpu["ecc"].update(corrected_volatile=0, uncorrected_volatile=0)
        gpu["remapped_rows"]["pending"] = False
        gpu["mig"].update(current=gpu["mig"]["pending"], instances=[])
        capabilities.update(str(self.path), gpu)

    def destroy(self) -> None:
        """End every process of the node and remove all that was made for it."""
        if self.exists:
            with self.change() as state:
                self._end(state, state["processes"])
        if self.cgroups.is_dir():
            process.remove_tree(self.cgroups)
            with contextlib.suppress(OSError):  # another node of this root still has its own below
                self.cgroups.parent.rmdir()
        shutil.rmtree(self.path, ignore_errors=not self.exists)

    # -- faults --------------------------------------------------------------------------------------------------------

    @staticmethod
    def select(state: dict[str, Any], index: int) -> dict[str, Any]:
        if not 0 <= index < len(state["gpus"]):
            raise SimulatorError(f"no GPU {index}: the node has {len(state['gpus'])}")
        gpu: dict[str, Any] = state["gpus"][index]
        return gpu

    def xid(self, index: int, code: int, text: str | None = None, pid: int | None = None, name: str | None = None) -> None:
        with self.change() as state:
            gpu = self.select(state, index)
            kmsg.xid(self.kmsg, state, gpu, code, text, pid, name)
            add_event(state, gpu, XID_EVENT, code)

    def log(self, text: str) -> None:
        """Any other line of the kernel log."""
        with self.change() as state:
            kmsg.write(self.kmsg, state, text)

    def recovery_action(self, index: int, action: str) -> None:
        """The driver's verdict, which it also tells as an Xid 154."""
        with self.change() as state:
            gpu = self.select(state, index)
            names, texts = list(kmsg.RECOVERY_TEXTS), kmsg.RECOVERY_TEXTS
            old, gpu["recovery_action"] = gpu["recovery_action"], action
            verdict = f"GPU recovery action changed from {names.index(old):#x} ({texts[old]}) to {names.index(action):#x} ({texts[action]})"
            kmsg.xid(self.kmsg, state, gpu, 154, verdict, None, None)
            add_event(state, gpu, XID_EVENT, 154)
            add_event(state, gpu, RECOVERY_EVENT, names.index(action))

    def row_remap(self, index: int, correctable: int = 0, uncorrectable: int = 0, pending: bool = False, failure: bool = False) -> None:
        with self.change() as state:
            rows = self.select(state, index)["remapped_rows"]
            rows["correctable"] += correctable
            rows["uncorrectable"] += uncorrectable
            rows["pending"] |= pending
            rows["failure"] |= failure

    def ecc(self, index: int, corrected: int = 0, uncorrected: int = 0, sram_threshold_exceeded: bool = False) -> None:
        with self.change() as state:
            gpu = self.select(state, index)
            for kind, count in (("corrected", corrected), ("uncorrected", uncorrected)):
                gpu["ecc"][f"{kind}_volatile"] += count
                gpu["ecc"][f"{kind}_aggregate"] += count
            gpu["ecc"]["sram_threshold_exceeded"] |= sram_threshold_exceeded
            if uncorrected:
                add_event(state, gpu, ECC_EVENT, 0)

    def lost(self, index: int) -> None:
        with self.change() as state:
            self.select(state, index)["lost"] = True

    def temperature(self, index: int, celsius: int) -> None:
        with self.change() as state:
            self.select(state, index)["temperature_celsius"] = celsius

    def hang(self, function: str, seconds: float | None, index: int | None = None) -> None:
        with self.change() as state:
            self._faults(state, index)["hang"][self._call(function)] = seconds

    def no_permission(self, function: str, index: int | None = None) -> None:
        with self.change() as state:
            self._faults(state, index)["no_permission"].append(self._call(function))

    def fail(self, function: str, error: str, at: int = 1, times: int | None = 1, index: int | None = None) -> None:
        """The call fails the Nth time that anybody makes it from now on, and `times` times in all (None: ever after)."""
        if error not in CODES:
            raise SimulatorError(f"no NVML error {error}: there are {', '.join(CODES)}")
        with self.change() as state:
            self._faults(state, index)["fail"][self._call(function)] = {"error": error, "at": at, "times": times, "calls": 0}

    def pod_resources(self, how: str) -> None:
        """How the kubelet's API on who has which device does."""
        if how not in POD_RESOURCES:
            raise SimulatorError(f"the PodResources API {', '.join(POD_RESOURCES)}, and not {how}")
        with self.change() as state:
            state["pod_resources"] = how

    def driver_not_loaded(self) -> None:
        with self.change() as state:
            state["faults"]["driver_not_loaded"] = True

    @staticmethod
    def _call(function: str) -> str:
        name = call_name(function)
        if name != "all" and name not in {call_name(symbol) for symbol in build.symbols()}:
            raise SimulatorError(f"the library has no call {function}")
        return name

    def _faults(self, state: dict[str, Any], index: int | None) -> dict[str, Any]:
        faults: dict[str, Any] = (state if index is None else self.select(state, index))["faults"]
        return faults

    def clear(self, index: int | None = None) -> None:
        """Take all injected faults back, of one GPU or of the whole node. The kernel log keeps what it said."""
        with self.change() as state:
            for gpu in state["gpus"] if index is None else [self.select(state, index)]:
                fresh = self._gpu(self.model, gpu["index"])
                for part in ("lost", "recovery_action", "faults", "ecc", "remapped_rows", "temperature_celsius"):
                    gpu[part] = fresh[part]
            if index is None:
                state["faults"] = {**no_faults(), "driver_not_loaded": False}
                state["pod_resources"] = "serves"

    # -- processes -----------------------------------------------------------------------------------------------------

    def start(
        self,
        gpus: list[int],
        name: str,
        memory_bytes: int,
        cgroup: str | None = None,
        ends: str = "normal",
        kind: str = "compute",
        pod: str | None = None,
        gi: int | None = None,
        ci: int | None = None,
    ) -> int:
        """Start a process on some GPUs, or in a MIG instance of one, and enter it into NVML; returns its pid.

        A `monitor` is in none of NVML's lists of processes, but holds what it watches.
        """
        if "/" in name or not name:
            raise SimulatorError(f"not a process name: {name!r}")
        if not re.fullmatch(r"normal|never|late:\d+", ends):
            raise SimulatorError(f"not a way to end: {ends} (normal, late:SECONDS, never)")
        leaf = self.cgroups / (cgroup or f"system.slice/{name}.service").strip("/")
        if ".." in leaf.parts:
            raise SimulatorError(f"not a cgroup below the node's own: {cgroup}")
        with self.change() as state:
            for index in gpus:
                self._may_start(self.select(state, index), kind, len(gpus), gi, ci)
                self._room(state, index, gi, memory_bytes)
            program = self.path / "bin" / name  # a file of its own: what runs is told apart by executable too
            if not program.exists():
                build.copy(build.holder(self.cache), program)
            minors = [state["gpus"][index]["minor"] for index in gpus]
            held = [] if gi is None else [capabilities.minor(minors[0], gi, part) for part in ((None,) if ci is None else (None, ci))]
            names = ("nvidiactl", *(f"nvidia{minor}" for minor in minors), *map(capabilities.device, held))
            devices = [self.path / "dev" / name for name in names]
            try:
                pid, supervisor = process.start(program, leaf, ends, devices)
            except RuntimeError:
                process.remove_cgroups(leaf, self.cgroups)
                raise
            state["processes"].append({
                "pid": pid, "start_ticks": start_ticks(pid), "supervisor": supervisor, "supervisor_ticks": start_ticks(supervisor) if supervisor else None,
                "name": name, "executable": str(program), "type": kind, "gpus": gpus, "memory_bytes": memory_bytes, "gi": gi, "ci": ci,
                "cgroup_path": str(leaf), "ends": ends, "pod": pod,
            })  # fmt: skip
            link = self.path / "proc" / str(pid)
            link.unlink(missing_ok=True)
            link.symlink_to(f"/proc/{pid}")
        return pid

    @staticmethod
    def _may_start(gpu: dict[str, Any], kind: str, gpus: int, gi: int | None, ci: int | None) -> None:
        name = f"GPU {gpu['index']}"
        if gi is None and ci is None:
            if gpu["mig"]["current"] and kind in ("compute", "mps"):
                raise SimulatorError(f"{name} is in MIG mode: work needs a GPU instance and a compute instance")
            return
        if gi is None or gpus > 1 or (ci is None and kind != "monitor"):
            raise SimulatorError(
                "a process is in one compute instance of one GPU instance of one GPU; only a monitor can hold all of a GPU instance"
            )
        found = [instance for instance in gpu["mig"]["instances"] if instance["id"] == gi]
        if not found or ci not in (None, *(compute["id"] for compute in found[0]["compute"])):
            raise SimulatorError(f"{name} has no GPU instance {gi}" + ("" if ci is None else f" with a compute instance {ci}"))

    def _room(self, state: dict[str, Any], index: int, gi: int | None, wanted: int) -> None:
        gpu, model = self.select(state, index), self.model
        total, where = model["memory"]["total_bytes"] - model["memory"]["reserved_bytes"], f"GPU {index}"
        if gi is not None:
            instance = next(one for one in gpu["mig"]["instances"] if one["id"] == gi)
            total, where = mig.profile(model, instance["profile"])["memorySizeMB"] * MIB, f"GPU instance {gi} of {where}"
        free = total - mig.memory_used(state, gpu, gi)
        if wanted > free:
            raise SimulatorError(f"{where} has {free // MIB} MiB free, not {wanted // MIB}")

    def grow(self, pid: int, more_bytes: int) -> None:
        with self.change() as state:
            entry = self._process(state, pid)
            for index in entry["gpus"]:
                self._room(state, index, entry["gi"], more_bytes)
            entry["memory_bytes"] += more_bytes

    def exit(self, pid: int) -> None:
        """The process ends now, whatever it was told about ending."""
        with self.change() as state:
            self._end(state, [self._process(state, pid)])

    def terminate(self, pid: int) -> None:
        with self.change() as state:
            process.terminate(self._process(state, pid))

    @staticmethod
    def _process(state: dict[str, Any], pid: int) -> dict[str, Any]:
        for entry in state["processes"]:
            if entry["pid"] == pid:
                found: dict[str, Any] = entry
                return found
        raise SimulatorError(f"process {pid} is not one of this node, or gone")

    def _end(self, state: dict[str, Any], entries: list[dict[str, Any]]) -> None:
        process.end(entries)
        self._sweep(state)

    # -- for others ----------------------------------------------------------------------------------------------------

    def host_variables(self) -> dict[str, str]:
        """What an inventory says about this node: everything a playbook needs, so that nothing comes from the shell."""
        self.state()
        return {
            "ansible_connection": "local", "ansible_python_interpreter": "{{ ansible_playbook_python }}",
            "gpuops_node_name": self.name, "gpuops_sim_state": self.file.path,
            "gpuops_nvml_library": str(self.nvml_library), "gpuops_nvidia_modprobe": str(self.modprobe), "gpuops_nvidia_smi": str(self.smi),
            "gpuops_mps_control": str(self.mps_control),
            "gpuops_kmsg_path": str(self.kmsg), "gpuops_dev_root": str(self.path / "dev"), "gpuops_proc_root": str(self.path / "proc"),
            "gpuops_state_dir": str(self.path / "var/lib/gpuops"), "gpuops_kubelet_dir": str(self.path / "var/lib/kubelet"),
            "gpuops_cgroup_root": str(process.cgroup_root()),
        }  # fmt: skip

    def summary(self) -> dict[str, Any]:
        """The state without what has died, and without what only the library needs."""
        state = self.state()
        hidden = ("answers", "events", "introduced")
        return {
            **state, "gpus": [{key: value for key, value in gpu.items() if key not in hidden} for gpu in state["gpus"]],
            "processes": [entry for entry in state["processes"] if is_alive(entry)], "path": str(self.path), "cgroups": str(self.cgroups),
        }  # fmt: skip


def nodes(root: Path, cache: Path | None = None) -> list[Node]:
    return [Node(root, file.parent.name, cache) for file in sorted(root.glob("*/state.json"))]

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One simulated node on disk: create it, put faults in, start processes, reset, reboot, destroy."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
import time
import uuid
from pathlib import Path
from typing import Any

from . import build, kmsg, process
from .state import StateFile, call_name, is_alive, start_ticks

MODELS = Path(__file__).parent / "models"
MIB = 1 << 20
# NVML's event types
ECC_EVENT, XID_EVENT, RECOVERY_EVENT = 0x2, 0x8, 0x8000
EVENTS_KEPT = 256
NAMESPACE = uuid.UUID("5e3c9d3a-6d50-5b0e-9d6e-67707573696d")  # ours, so that a node's GPUs have the same UUIDs wherever it is made


def no_faults() -> dict[str, Any]:
    return {"hang": {}, "no_permission": []}


class SimulatorError(Exception):
    """A request that cannot be met, in words for who typed it."""


def load_model(name: str) -> dict[str, Any]:
    path = MODELS / f"{name}.json"
    if not path.is_file():
        raise SimulatorError(f"no model {name}: there are {', '.join(sorted(file.stem for file in MODELS.glob('*.json')))}")
    model: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if "extends" in model:
        base = load_model(model["extends"])
        model = {**base, **model, "answers": {**base["answers"], **model["answers"]}}
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
        self.library = self.path / "lib" / build.SONAME
        mark = hashlib.sha256(str(self.root).encode()).hexdigest()[:8]
        self.cgroups = process.cgroup_root() / f"gpusim-{mark}" / name

    @property
    def exists(self) -> bool:
        return Path(self.file.path).is_file()

    def state(self) -> dict[str, Any]:
        if not self.exists:
            raise SimulatorError(f"no simulated node {self.name} in {self.root}")
        return self.file.read()

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
        built = build.library(self.cache)
        for folder in ("dev", "proc/sys/kernel/random", "var/lib/gpuops", "bin"):
            (self.path / folder).mkdir(parents=True)
        build.copy(built, self.library)
        (self.path / "model.json").write_text(json.dumps(model, indent=1), encoding="utf-8")
        state: dict[str, Any] = {
            "version": 1, "node": self.name, "model": model_name, "driver_version": model["answers"]["nvmlSystemGetDriverVersion"],
            "faults": {**no_faults(), "driver_not_loaded": False}, "event_sequence": 0,
            "gpus": [self._gpu(model, index) for index in range(gpus)], "processes": [], "pods": {},
        }  # fmt: skip
        for device in ("nvidiactl", *(f"nvidia{gpu['minor']}" for gpu in state["gpus"])):
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
                "nvmlDeviceGetUUID": gpu_uuid, "nvmlDeviceGetSerial": serial, "nvmlDeviceGetIndex": index,
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
            state["pods"] = {}
            state["faults"] = {**no_faults(), "driver_not_loaded": False}
            for gpu in state["gpus"]:
                self._power_up(gpu)
                gpu["introduced"] = False
            self._boot(state)

    def reset(self, index: int, force: bool = False) -> None:
        """A GPU reset, recorded; refused, as by nvidia-smi, while a process holds the GPU."""
        with self.change() as state:
            gpu = self._select(state, index)
            holders = [f"{entry['name']} ({entry['pid']})" for entry in state["processes"] if index in entry["gpus"]]
            if holders and not force:
                raise SimulatorError(f"GPU {gpu['pci_bus_id']} is in use by another client: {', '.join(holders)}")
            self._power_up(gpu)
            gpu["resets"].append({"time": time.time(), "boot_id": state["boot"]["id"]})
            kmsg.reset(self.kmsg, state, gpu)

    @staticmethod
    def _power_up(gpu: dict[str, Any]) -> None:
        """What a reset or a power cycle clears. Rows marked for remapping are remapped by it; a failure to remap, worn-out
        on-chip memory and the aggregate counts stay."""
        gpu.update(lost=False, recovery_action="none", faults=no_faults())
        gpu["ecc"].update(corrected_volatile=0, uncorrected_volatile=0)
        gpu["remapped_rows"]["pending"] = False
        gpu["mig"].update(current=gpu["mig"]["pending"], instances=[])

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
    def _select(state: dict[str, Any], index: int) -> dict[str, Any]:
        if not 0 <= index < len(state["gpus"]):
            raise SimulatorError(f"no GPU {index}: the node has {len(state['gpus'])}")
        gpu: dict[str, Any] = state["gpus"][index]
        return gpu

    @staticmethod
    def _event(state: dict[str, Any], gpu: dict[str, Any], kind: int, data: int) -> None:
        state["event_sequence"] += 1
        gpu["events"].append({"sequence": state["event_sequence"], "type": kind, "data": data, "gi": None, "ci": None})
        del gpu["events"][:-EVENTS_KEPT]

    def xid(self, index: int, code: int, text: str | None = None, pid: int | None = None, name: str | None = None) -> None:
        with self.change() as state:
            gpu = self._select(state, index)
            kmsg.xid(self.kmsg, state, gpu, code, text, pid, name)
            self._event(state, gpu, XID_EVENT, code)

    def log(self, text: str) -> None:
        """Any other line of the kernel log."""
        with self.change() as state:
            kmsg.write(self.kmsg, state, text)

    def recovery_action(self, index: int, action: str) -> None:
        """The driver's verdict, which it also tells as an Xid 154."""
        with self.change() as state:
            gpu = self._select(state, index)
            names, texts = list(kmsg.RECOVERY_TEXTS), kmsg.RECOVERY_TEXTS
            old, gpu["recovery_action"] = gpu["recovery_action"], action
            verdict = f"GPU recovery action changed from {names.index(old):#x} ({texts[old]}) to {names.index(action):#x} ({texts[action]})"
            kmsg.xid(self.kmsg, state, gpu, 154, verdict, None, None)
            self._event(state, gpu, XID_EVENT, 154)
            self._event(state, gpu, RECOVERY_EVENT, names.index(action))

    def row_remap(self, index: int, correctable: int = 0, uncorrectable: int = 0, pending: bool = False, failure: bool = False) -> None:
        with self.change() as state:
            rows = self._select(state, index)["remapped_rows"]
            rows["correctable"] += correctable
            rows["uncorrectable"] += uncorrectable
            rows["pending"] |= pending
            rows["failure"] |= failure

    def ecc(self, index: int, corrected: int = 0, uncorrected: int = 0, sram_threshold_exceeded: bool = False) -> None:
        with self.change() as state:
            gpu = self._select(state, index)
            for kind, count in (("corrected", corrected), ("uncorrected", uncorrected)):
                gpu["ecc"][f"{kind}_volatile"] += count
                gpu["ecc"][f"{kind}_aggregate"] += count
            gpu["ecc"]["sram_threshold_exceeded"] |= sram_threshold_exceeded
            if uncorrected:
                self._event(state, gpu, ECC_EVENT, 0)

    def lost(self, index: int) -> None:
        with self.change() as state:
            self._select(state, index)["lost"] = True

    def temperature(self, index: int, celsius: int) -> None:
        with self.change() as state:
            self._select(state, index)["temperature_celsius"] = celsius

    def hang(self, function: str, seconds: float | None, index: int | None = None) -> None:
        with self.change() as state:
            self._faults(state, index)["hang"][self._call(function)] = seconds

    def no_permission(self, function: str, index: int | None = None) -> None:
        with self.change() as state:
            self._faults(state, index)["no_permission"].append(self._call(function))

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
        faults: dict[str, Any] = (state if index is None else self._select(state, index))["faults"]
        return faults

    def clear(self, index: int | None = None) -> None:
        """Take all injected faults back, of one GPU or of the whole node. The kernel log keeps what it said."""
        with self.change() as state:
            model = json.loads((self.path / "model.json").read_text(encoding="utf-8"))
            for gpu in state["gpus"] if index is None else [self._select(state, index)]:
                fresh = self._gpu(model, gpu["index"])
                for part in ("lost", "recovery_action", "faults", "ecc", "remapped_rows", "temperature_celsius"):
                    gpu[part] = fresh[part]
            if index is None:
                state["faults"] = {**no_faults(), "driver_not_loaded": False}

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
    ) -> int:
        """Start a process on some GPUs and enter it into NVML; returns its pid."""
        if "/" in name or not name:
            raise SimulatorError(f"not a process name: {name!r}")
        if not re.fullmatch(r"normal|never|late:\d+", ends):
            raise SimulatorError(f"not a way to end: {ends} (normal, late:SECONDS, never)")
        leaf = self.cgroups / (cgroup or f"system.slice/{name}.service").strip("/")
        if ".." in leaf.parts:
            raise SimulatorError(f"not a cgroup below the node's own: {cgroup}")
        with self.change() as state:
            for index in gpus:
                self._room(state, index, memory_bytes)
            program = self.path / "bin" / name  # a file of its own: what runs is told apart by executable too
            if not program.exists():
                build.copy(build.holder(self.cache), program)
            devices = [
                self.path / "dev" / device for device in ("nvidiactl", *(f"nvidia{state['gpus'][index]['minor']}" for index in gpus))
            ]
            try:
                pid, supervisor = process.start(program, leaf, ends, devices)
            except RuntimeError:
                process.remove_cgroups(leaf, self.cgroups)
                raise
            state["processes"].append({
                "pid": pid, "start_ticks": start_ticks(pid), "supervisor": supervisor, "supervisor_ticks": start_ticks(supervisor) if supervisor else None,
                "name": name, "executable": str(program), "type": kind, "gpus": gpus, "memory_bytes": memory_bytes, "gi": None, "ci": None,
                "cgroup_path": str(leaf), "ends": ends, "pod": pod,
            })  # fmt: skip
            link = self.path / "proc" / str(pid)
            link.unlink(missing_ok=True)
            link.symlink_to(f"/proc/{pid}")
        return pid

    def _room(self, state: dict[str, Any], index: int, wanted: int) -> None:
        self._select(state, index)
        memory = json.loads((self.path / "model.json").read_text(encoding="utf-8"))["memory"]
        free = memory["total_bytes"] - memory["reserved_bytes"] - sum(p["memory_bytes"] for p in state["processes"] if index in p["gpus"])
        if wanted > free:
            raise SimulatorError(f"GPU {index} has {free // MIB} MiB free, not {wanted // MIB}")

    def grow(self, pid: int, more_bytes: int) -> None:
        with self.change() as state:
            entry = self._process(state, pid)
            for index in entry["gpus"]:
                self._room(state, index, more_bytes)
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
            "gpuops_node_name": self.name, "gpuops_sim_state": self.file.path, "gpuops_nvml_library": str(self.library),
            "gpuops_kmsg_path": str(self.kmsg), "gpuops_dev_root": str(self.path / "dev"), "gpuops_proc_root": str(self.path / "proc"),
            "gpuops_state_dir": str(self.path / "var/lib/gpuops"), "gpuops_cgroup_root": str(process.cgroup_root()),
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

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
"""The MIG state of a node's GPUs, read in a watched child: of a GPU whose driver hangs the answer says in which call, and the others answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu import nvml as gpu_nvml
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu import records
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.calls import Calls
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.driver import read
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.errors import Refused
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.reading import Reading, from_data
from ansible_collections.gpuops.remediation.plugins.module_utils._node.node import Node
from ansible_collections.gpuops.remediation.plugins.module_utils._node.watchdog import Emit, Watchdog

SOURCE = "mig"


@dataclass(frozen=True)
class GpuAnswer:
    """`error` (msg, error_kind and more, as a module fails with it) says why there is no reading."""

    index: int
    uuid: Optional[str] = None
    pci_bus_id: Optional[str] = None
    reading: Optional[Reading] = None
    error: Optional[Mapping[str, Any]] = None

    def is_one_of(self, wanted: Sequence[str]) -> bool:
        return not wanted or bool({self.uuid, self.pci_bus_id} & set(wanted))


@dataclass(frozen=True)
class NodeAnswer:
    """The GPUs asked for. `unknown` are names that no GPU has; `why` is set where NVML as a whole did not tell all."""

    driver_version: Optional[str]
    gpus: tuple[GpuAnswer, ...]
    unknown: tuple[str, ...] = ()
    why: Optional[str] = None


def read_node(node: Node, wanted: Sequence[str], *, timeout_seconds: float) -> NodeAnswer:
    """`wanted` are UUIDs or PCI addresses; none means all."""
    wanted = records.normalise(wanted)
    answers, _abandoned = Watchdog(node.state, timeout_seconds).collect({SOURCE: partial(collect, node.nvml_library, wanted)})
    return join(answers[SOURCE].items, answers[SOURCE].why, wanted)


def collect(library: str, wanted: Sequence[str], emit: Emit) -> None:
    nvml = gpu_nvml.start(library, emit)
    gpu_nvml.each_gpu(nvml, lambda index: _tell(nvml, index, wanted, emit))


def _tell(nvml: Any, index: int, wanted: Sequence[str], emit: Emit) -> None:
    calls = Calls(nvml, lambda name: emit({"gpu": index, "begins": name}))
    try:
        handle = calls.nvmlDeviceGetHandleByIndex(index)
        uuid = records.text(calls.nvmlDeviceGetUUID(handle))
        address = records.pci_bus_id(records.text(calls.nvmlDeviceGetPciInfo(handle).busId))
        answer = {"uuid": uuid, "pci_bus_id": address}
        emit({"gpu": index, "answer": answer})
        if not wanted or {uuid, address} & set(wanted):
            emit({"gpu": index, "answer": {**answer, "reading": read(calls, handle).data()}})
    except nvml.NVMLError as error:
        emit({"gpu": index, "error": calls.error(error).failure()})
    except RemediationError as error:
        emit({"gpu": index, "error": error.failure()})
    except Exception as error:  # a thread's exception would be lost, and the GPU with it
        emit({"gpu": index, "error": Refused(f"{type(error).__name__}: {error}").failure()})


def join(items: Iterable[Mapping[str, Any]], why: Optional[str], wanted: Sequence[str]) -> NodeAnswer:
    """The call that a GPU's reader began last and never ended is that GPU's error."""
    version: Optional[str] = None
    gpus: dict[int, GpuAnswer] = {}
    pending: dict[int, Optional[str]] = {}
    for item in items:
        if "gpu" not in item:
            version = item["driver_version"]
            continue
        index = item["gpu"]
        gpu = gpus.setdefault(index, GpuAnswer(index))
        pending[index] = item.get("begins")
        if "answer" in item:
            told = item["answer"]
            reading = from_data(told["reading"]) if "reading" in told else None
            gpus[index] = replace(gpu, uuid=told["uuid"], pci_bus_id=told["pci_bus_id"], reading=reading)
        elif "error" in item:
            gpus[index] = replace(gpu, error=item["error"])
    for index, call in pending.items():
        if call:
            gpus[index] = replace(gpus[index], error=Refused(f"{call}: {why or 'did not answer'}", call=call).failure())
    unknown = tuple(name for name in wanted if not any(gpu.is_one_of([name]) for gpu in gpus.values()))
    chosen = (gpus[index] for index in sorted(gpus) if gpus[index].is_one_of(wanted) or (unknown and gpus[index].uuid is None))
    return NodeAnswer(version, tuple(chosen), unknown, why)

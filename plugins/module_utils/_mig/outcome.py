# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
"""What a run came to, GPU by GPU, as the modules return it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._mig import steps as step
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.apply import Order
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.drawing import draw
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.layout import Layout
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.planner import Plan
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.reading import Reading, show
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.survey import GpuState

_NOTHING: dict[str, Any] = {
    **dict.fromkeys(("uuid", "pci_bus_id", "name", "before", "after")),
    "changed": False,
    "steps": [],
    "moved": [],
    "clients": [],
    "device_files": [],
    "reset_required": False,
}


@dataclass
class Work:
    """One GPU: what it was, what is to be done, and what came of it.

    `blocked` is what is busy, in the way, and could be freed. `device_files` are the capability files of instances that were as wanted, and
    could not be opened by containers. `clients` have the GPU open whose mode is to change.
    """

    state: GpuState
    order: Optional[Order] = None
    plan: Optional[Plan] = None
    error: Optional[dict[str, Any]] = None
    blocked: Sequence[str] = ()
    made: Sequence[step.MigStep] = ()
    after: Optional[Reading] = None
    reset_required: bool = False
    device_files: Sequence[str] = ()
    clients: Sequence[Mapping[str, Any]] = ()
    warnings: list[str] = field(default_factory=list)

    @property
    def uuid(self) -> str:
        return str(self.state.answer.uuid)

    @property
    def reading(self) -> Optional[Reading]:
        return self.state.answer.reading

    @property
    def prior(self) -> Layout:
        return (self.reading.layout if self.reading else None) or Layout(False)

    @property
    def now(self) -> Layout:
        return (self.after.layout if self.after else None) or self.prior

    @property
    def changed(self) -> bool:
        """What was taken back is no change, and what nobody can read is one."""
        return self.unread or bool(self.device_files) or (bool(self.made) and self.now != self.prior)

    @property
    def unread(self) -> bool:
        """Whether it was touched, and nobody can tell what it is like now."""
        return bool(self.made) and self.after is None

    @property
    def has_steps(self) -> bool:
        return self.plan is not None and bool(self.plan.steps)

    @property
    def changes_mode(self) -> bool:
        return self.plan is not None and any(one.instance is None for one in self.plan.steps)

    @property
    def resets(self) -> bool:
        """Whether a reset is a part of it, and allowed."""
        allowed = self.order is not None and self.order.allow_reset
        return allowed and self.plan is not None and any(one.action == step.RESET for one in self.plan.steps)

    def fail(self, error: RemediationError, **more: Any) -> None:
        self.error = {**error.failure(), **more}


def predict(work: Work, *, allow_reset: bool) -> None:
    """What check mode says: as far as the real run would go, which without leave to reset is to the reset."""
    if work.plan is None or work.error is not None or work.reading is None:
        return
    work.made, layout = work.plan.steps, work.plan.layout
    resets = [place for place, one in enumerate(work.made) if one.action == step.RESET]
    if resets and not allow_reset:
        wanted, work.made, work.reset_required = bool(work.made[resets[0]].after), work.made[: resets[0]], True
        there = step.predict(work.prior, [one for one in work.made if one.instance is not None])
        layout = Layout(work.prior.mig, there.instances, None if wanted == work.prior.mig else wanted)
    work.after = Reading(**{**vars(work.reading), "layout": layout, "mig_uuids": {}})


def result(works: Sequence[Work], unknown: Sequence[str], why: Optional[str]) -> dict[str, Any]:
    """`failed` where a GPU has an error; what the others came to is there all the same. `why`: NVML did not tell of all GPUs."""
    gpus = [_gpu(work) for work in works]
    gpus += [{**_NOTHING, "error": _unknown(name, why)} for name in unknown]
    failed = [gpu for gpu in gpus if gpu["error"]]
    told: dict[str, Any] = {
        "changed": any(gpu["changed"] for gpu in gpus),
        "reset_required": any(gpu["reset_required"] for gpu in gpus),
        "gpus": gpus,
        "diff": _diff(works),
    }
    if failed:
        told.update(failed=True, msg="; ".join(map(_told, failed)), error_kind=failed[0]["error"]["kind"])
    return told


def _gpu(work: Work) -> dict[str, Any]:
    answer, reading = work.state.answer, work.reading
    return {
        "uuid": answer.uuid,
        "pci_bus_id": answer.pci_bus_id,
        "name": reading.name if reading else None,
        "changed": work.changed,
        "before": show(work.prior, reading) if reading else None,
        "after": show(work.now, work.after or reading) if reading and not work.unread else None,
        "steps": [_step(one) for one in work.made],
        "moved": [one.name for one in work.plan.moved] if work.plan else [],
        "clients": list(work.clients),
        "device_files": list(work.device_files),
        "reset_required": work.reset_required,
        "error": {"kind": work.error["error_kind"], **{key: value for key, value in work.error.items() if key != "error_kind"}}
        if work.error
        else None,
    }


def _unknown(name: str, why: Optional[str]) -> dict[str, str]:
    if why is not None:
        return {"kind": "nvml", "msg": f"GPU {name} was not found, and NVML did not tell all: {why}"}
    return {"kind": "unknown_gpu", "msg": f"there is no GPU {name} on this node"}


def _step(one: step.MigStep) -> dict[str, Any]:
    told = asdict(one)
    return {name: told[name] for name in ("action", "target", "before", "after", "consequences")}


def _told(gpu: Mapping[str, Any]) -> str:
    where, why = gpu["pci_bus_id"] or gpu["uuid"], str(gpu["error"]["msg"])
    return f"GPU {where}: {why}" if where else why


def _diff(works: Sequence[Work]) -> dict[str, str]:
    """Of the GPUs that change, drawn."""
    before, after = "", ""
    for work in works:
        if work.reading and work.reading.model and work.now != work.prior:
            head = f"{work.uuid} ({work.reading.pci_bus_id})\n"
            before += head + draw(work.reading.model, work.prior)
            after += head + draw(work.reading.model, work.now)
    return {"before": before, "after": after}

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""S17: a release needs every check, and each check can refuse it alone."""

from __future__ import annotations

import copy
import dataclasses

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.release import Case, NotReleasable, checks, require

PCI = "0000:00:06.0"


def gpu(**changes):
    return {
        "uuid": "GPU-1",
        "pci_bus_id": PCI,
        "serial": "S1",
        "lost": False,
        "recovery_action": "none",
        "remapped_rows": {"pending": False, "failure": False},
        "ecc": {"uncorrected_volatile": 0, "uncorrected_aggregate": 3},
        "processes": [],
        "processes_source": "nvml",
        "errors": [],
        **changes,
    }


def refused(*calls):
    """What gpu_info shows where NVML refuses these calls: their fields are there, and null."""
    return [{"call": call, "error": "Unknown Error"} for call in calls]


UNREAD_ROWS = {"remapped_rows": {"pending": None, "failure": None}, "errors": refused("nvmlDeviceGetRemappedRows")}
UNREAD_ECC = {"ecc": {"uncorrected_volatile": None, "uncorrected_aggregate": None}, "errors": refused("nvmlDeviceGetTotalEccErrors")}
UNREAD_HOLDERS = {"processes_source": None, "errors": refused("nvmlDeviceGetComputeRunningProcesses_v3")}


def info(*gpus, boot="boot-1", xids=(), missing=(), resets=()):
    """`resets` are seconds after the boot (that of boot-2 came an hour after the incident, that of boot-1 a day before)."""
    return {
        "node": {"boot_id": boot, "boot_time": "2026-01-01T01:00:00Z" if boot == "boot-2" else "2025-12-31T00:00:00Z"},
        "kernel_log": [f"6,9,{int(seconds * 1e6)},-;nvidia {pci}: reset done" for pci, seconds in resets],
        "gpus": list(gpus),
        "xids": list(xids),
        "missing": list(missing),
    }


def case(now, *, repair="reboot_node", scope="gpu", domain="bus", allowed=()):
    return Case(
        opened_at="2026-01-01T00:00:00Z",
        repair=repair,
        scope=scope,
        domain=domain,
        gpu_uuid=None if scope == "node" else "GPU-1",
        pci_bus_id=None if scope == "node" else PCI,
        now=now,
        then=info(gpu()),
        allowed_holders=allowed,
        is_fatal=lambda event: event["code"] in (48, 79) or event.get("sxid", False),
    )


def failed(the_case):
    return [check.name for check in checks(the_case) if check.ok is False]


REBOOTED = info(gpu(), boot="boot-2")


def rebooted(**changes):
    return info(gpu(**changes), boot="boot-2")


def xid(code, time, pci=PCI):
    return {"code": code, "time": time, "pci_bus_id": pci, "fallen_off_bus": False}


@pytest.mark.parametrize(
    "the_case, refused_by",
    [
        pytest.param(case(REBOOTED), [], id="all well"),
        pytest.param(case(rebooted(lost=True)), ["nvml_answers"], id="lost"),
        pytest.param(case({**REBOOTED, "missing": [{"source": "nvml", "why": "hangs"}]}), ["nvml_answers"], id="nvml hangs"),
        pytest.param(case({**REBOOTED, "gpus": []}), ["nvml_answers"], id="no GPU: silence is not health"),
        pytest.param(case(rebooted(uuid="GPU-2", pci_bus_id="0000:00:07.0")), ["nvml_answers"], id="another GPU answers"),
        pytest.param(case(rebooted(recovery_action="gpu_reset")), ["recovery_action"], id="recovery action"),
        pytest.param(case(rebooted(recovery_action=None)), ["recovery_action"], id="recovery action unread"),
        pytest.param(case(rebooted(remapped_rows={"pending": True, "failure": False})), ["row_remap"], id="pending remap"),
        pytest.param(case(rebooted(remapped_rows={"pending": False, "failure": True})), ["row_remap"], id="failed remap"),
        pytest.param(case(rebooted(remapped_rows=None)), ["row_remap"], id="remap unread"),
        pytest.param(case(rebooted(ecc={"uncorrected_volatile": 1, "uncorrected_aggregate": 3})), ["ecc"], id="volatile ECC"),
        pytest.param(case(rebooted(ecc={"uncorrected_volatile": 0, "uncorrected_aggregate": 4})), ["ecc"], id="aggregate ECC grew"),
        pytest.param(case(rebooted(ecc=None)), ["ecc"], id="ECC unread"),
        pytest.param(case(rebooted(ecc={"sram_threshold_exceeded": True})), ["ecc"], id="on-chip memory worn out"),
        pytest.param(case(rebooted(errors=refused("nvmlDeviceGetSramEccErrorStatus"))), ["ecc"], id="on-chip memory refused by NVML"),
        pytest.param(case(rebooted(**UNREAD_ROWS)), ["row_remap"], id="remap refused by NVML"),
        pytest.param(case(rebooted(**UNREAD_ECC)), ["ecc"], id="ECC refused by NVML"),
        pytest.param(case(rebooted(**{**UNREAD_ROWS, **UNREAD_ECC, "errors": []})), [], id="a model without row remapping and ECC"),
        pytest.param(case(rebooted(**UNREAD_HOLDERS)), ["holders"], id="holders unread"),
        pytest.param(case({**REBOOTED, "xids": [xid(79, "2026-01-01T02:00:00Z")]}), ["kernel_log"], id="fatal Xid after the repair"),
        pytest.param(case({**REBOOTED, "xids": [xid(79, "2026-01-01T00:30:00Z")]}), [], id="fatal Xid before the repair"),
        pytest.param(case({**REBOOTED, "xids": [xid(13, "2026-01-01T02:00:00Z")]}), [], id="application Xid"),
        pytest.param(case({**REBOOTED, "xids": [xid(79, "2026-01-01T02:00:00Z", "0000:00:09.0")]}), [], id="another GPU's Xid"),
        pytest.param(case(rebooted(processes=[{"name": "train", "pid": 7}])), ["holders"], id="a holder"),
        pytest.param(case(rebooted(processes=[{"name": "dcgm", "pid": 7}]), allowed=["dcgm"]), [], id="an allowed holder"),
        pytest.param(case(info(gpu())), ["repaired"], id="no reboot"),
        pytest.param(case(info(gpu()), repair="restart_app"), [], id="no repair asked for"),
    ],
)
def test_each_check_refuses_alone(the_case, refused_by):
    assert failed(the_case) == refused_by
    if refused_by:
        with pytest.raises(NotReleasable, match=refused_by[0]):
            require(checks(the_case))
    else:
        require(checks(the_case))


@pytest.mark.parametrize(("fleet", "ok"), [(None, None), ([], True), (["the alert GpuXid fires"], False)])
def test_the_fleet_is_asked_where_it_is_configured(fleet, ok):
    [check] = [one for one in checks(case(REBOOTED), fleet) if one.name == "prometheus"]
    assert check.ok is ok
    assert check.why == (fleet[0] if fleet else check.why)


def test_a_case_is_made_of_the_ledgers_record():
    incident = {
        "opened_at": "2026-01-01T00:00:00Z",
        "verdict": {"repair": "reboot_node", "scope": "gpu", "gpu_uuid": "GPU-1", "pci_bus_id": PCI},
        "stages": {"diagnose": {"data": {"evidence": {"info": info(gpu())}}}},
    }
    made = Case.of(incident, REBOOTED, is_fatal=lambda event: event["code"] in (48, 79))
    assert failed(made) == []
    assert failed(Case.of(incident, info(gpu()), is_fatal=made.is_fatal)) == ["repaired"]


HOURS = 3600


@pytest.mark.parametrize(
    "resets, refused_by",
    [
        pytest.param([(PCI, 25 * HOURS)], [], id="recorded reset"),
        pytest.param([(PCI, 23 * HOURS)], ["repaired"], id="reset before the incident"),
        pytest.param([("0000:00:07.0", 25 * HOURS)], ["repaired"], id="reset of another GPU"),
        pytest.param([], ["repaired"], id="no reset"),
    ],
)
def test_a_recorded_reset_proves_a_reset(resets, refused_by):
    assert failed(case(info(gpu(), resets=resets), repair="reset_gpu")) == refused_by


def test_a_reset_does_not_prove_a_reboot():
    assert failed(case(info(gpu(), resets=[(PCI, 25 * HOURS)]))) == ["repaired"]


@pytest.mark.parametrize(
    "repair, boot, resets, refused_by",
    [
        pytest.param("reset_gpu", "boot-1", [], ["repaired"], id="not a reset, although its boot is not that of a diagnosis"),
        pytest.param("reset_gpu", "boot-1", [(PCI, 25 * HOURS)], [], id="reset"),
        pytest.param("reboot_node", "boot-1", [], ["repaired"], id="up since before the incident"),
        pytest.param("reboot_node", "boot-2", [], [], id="booted after the incident began"),
    ],
)
def test_a_node_that_was_silent_when_it_was_diagnosed(repair, boot, resets, refused_by):
    assert failed(dataclasses.replace(case(info(gpu(), boot=boot, resets=resets), repair=repair), then={})) == refused_by


def test_a_reset_before_the_last_diagnosis_is_no_proof():
    diagnosed_later = {**info(gpu()), "node": {"boot_id": "boot-1", "collected_at": "2026-01-01T02:00:00.000000+00:00"}}
    for hours, refused_by in ((25, ["repaired"]), (27, [])):
        now = info(gpu(), resets=[(PCI, hours * HOURS)])
        assert failed(dataclasses.replace(case(now, repair="reset_gpu"), then=diagnosed_later)) == refused_by


@pytest.mark.parametrize("serial, refused_by", [("S1", ["repaired"]), ("S2", []), (None, ["repaired"])])
def test_replace_wants_another_board_in_the_slot(serial, refused_by):
    now = rebooted(serial=serial, uuid="GPU-2" if serial == "S2" else "GPU-1", ecc={"uncorrected_volatile": 0, "uncorrected_aggregate": 0})
    assert failed(case(now, repair="replace")) == refused_by


SWITCH = "0000:c1:00.0"
LATER, EARLIER = "2026-01-01T02:00:00Z", "2026-01-01T00:30:00Z"  # than the boot


def sxid(time):
    return {**xid(20034, time, SWITCH), "sxid": True}


@pytest.mark.parametrize(
    "concerns, event, refused_by",
    [
        pytest.param({"scope": "node", "domain": "fabric"}, sxid(LATER), ["kernel_log"], id="a switch, for the node"),
        pytest.param({"scope": "node", "domain": "fabric"}, sxid(EARLIER), [], id="a switch before the boot"),
        pytest.param({"scope": "gpu", "domain": "nvlink"}, sxid(LATER), ["kernel_log"], id="a switch, for a link"),
        pytest.param({"scope": "gpu", "domain": "fabric"}, sxid(LATER), ["kernel_log"], id="a switch, for the fabric"),
        pytest.param({"scope": "gpu", "domain": "memory"}, sxid(LATER), [], id="a switch, for a GPU's own memory"),
        pytest.param({"scope": "node", "domain": "driver"}, xid(79, LATER, None), ["kernel_log"], id="a line without a GPU, for the node"),
        pytest.param({"scope": "node", "domain": "driver"}, xid(79, LATER, "0000:00:09.0"), ["kernel_log"], id="a GPU that is gone"),
        pytest.param({"scope": "gpu", "domain": "nvlink"}, xid(79, LATER, "0000:00:09.0"), ["kernel_log"], id="the other end of a link"),
        pytest.param({"scope": "gpu", "domain": "memory"}, xid(79, LATER, None), [], id="a line without a GPU, for another GPU"),
        pytest.param({"scope": "node", "domain": "driver"}, xid(13, LATER, None), [], id="an application's"),
    ],
)
def test_what_a_whole_node_logs(concerns, event, refused_by):
    """S17: what the GPUs of a node share is looked at as a whole."""
    the_case = case({**REBOOTED, "xids": [event]}, **concerns)
    assert failed(the_case) == refused_by
    [why] = [check.why for check in checks(the_case) if check.name == "kernel_log"]
    assert (("SXid 20034" in why) if event.get("sxid") else ("Xid 79" in why)) is bool(refused_by)


def test_node_scope_looks_at_every_gpu():
    sick = gpu(uuid="GPU-2", pci_bus_id="0000:00:07.0", serial="S2", recovery_action="node_reboot")
    now = info(gpu(), sick, boot="boot-2")
    assert failed(case(copy.deepcopy(now), scope="gpu")) == []
    assert failed(case(now, scope="node")) == ["recovery_action"]


def test_a_source_that_is_not_configured_is_named_and_does_not_refuse():
    [prometheus] = [check for check in checks(case(REBOOTED)) if check.name == "prometheus"]
    assert prometheus.ok is None and prometheus.why == "not configured"

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import random

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._diagnosis.verdict import diagnose, diagnose_all
from ansible_collections.gpuops.remediation.plugins.module_utils._xid.lines import parse_lines
from ansible_collections.gpuops.remediation.plugins.module_utils._xid.policy import load_policy
from gpu_evidence import BOOT_ID, BOOT_TIME, FIXTURES, NOW, POLICY_FILE, alert, at, evidence, gpu, info, pci, process, uuid, xid

POLICY = load_policy(str(POLICY_FILE))
FATAL = "Fatal XC0 i0 Link 09 (0x004525c6 0x00000000)"
NO_LOG = {"source": "kernel_log", "why": "permission denied"}
NVML_SLOW = {"source": "nvml", "why": "did not answer within 20 s"}
QUARANTINES = ("quarantine_gpu", "quarantine_node")


def judged(verdict):
    return verdict["domain"], verdict["scope"], verdict["action"], verdict["repair"], verdict["certainty"]


def says(verdict):
    return " ".join(verdict["reasons"])


def rows(pending=False, failure=False):
    return {"remapped_rows": {"pending": pending, "failure": failure}}


def recovery(changed_to, **options):
    return xid(154, f"GPU recovery action changed from 0x0 (None) to {changed_to}", **options)


# ---------------------------------------------------------------- one GPU, the node answers

HEALTHY = ("none", "gpu", "none", "none", "certain")
CRASH = ("application", "process", "none", "restart_app", "certain")
RESET = ("memory", "gpu", "quarantine_gpu", "reset_gpu", "certain")
REPLACE = ("memory", "gpu", "quarantine_gpu", "replace", "certain")
OFF_BUS = ("bus", "gpu", "quarantine_gpu", "reboot_node", "certain")


@pytest.mark.parametrize(
    "lines, fields, expected",
    [
        pytest.param([], {}, HEALTHY, id="nothing"),
        pytest.param([xid(31, "MMU Fault", pid=7)], {}, CRASH, id="a crash"),
        pytest.param([xid(31, pid=7)], {"recovery_action": None}, (*CRASH[:4], "likely"), id="a crash, the driver not asked"),
        pytest.param([xid(45, pid=7, text="Ch 8 caused by previous Xid 31")], {}, CRASH, id="the teardown after a crash"),
        pytest.param(
            [xid(45, pid=7, text="Ch 8 caused by previous Xid 79")], {}, OFF_BUS, id="the teardown names a cause whose line is lost"
        ),
        pytest.param([xid(48)], {}, RESET, id="48"),
        pytest.param([xid(48), xid(63)], rows(pending=True), RESET, id="48 with 63"),
        pytest.param([xid(48), xid(64)], rows(failure=True), REPLACE, id="48 with 64"),
        pytest.param(
            [xid(48), xid(64), recovery("0x1 (GPU Reset Required)")],
            rows(failure=True),
            REPLACE,
            id="a failed remap outlives the driver's reset",
        ),
        pytest.param(
            [xid(48), xid(63), xid(94, pid=7)], rows(), ("memory", "process", "observe", "restart_app", "certain"), id="contained"
        ),
        pytest.param([xid(94, pid=7)], {}, ("memory", "process", "observe", "restart_app", "certain"), id="94"),
        pytest.param([xid(94, pid=7), xid(95)], {}, RESET, id="94 and 95"),
        pytest.param([xid(63)], rows(pending=True), ("memory", "gpu", "observe", "reset_gpu", "certain"), id="63"),
        pytest.param([], rows(pending=True), ("memory", "gpu", "observe", "reset_gpu", "certain"), id="a pending remap alone"),
        pytest.param([], rows(failure=True), REPLACE, id="a failed remap alone"),
        pytest.param([xid(31, pid=7)], rows(failure=True), REPLACE, id="a crash on a GPU with a failed remap"),
        pytest.param([], {"ecc": {"uncorrected_volatile": 2}}, ("memory", "gpu", "observe", "none", "certain"), id="old ECC errors"),
        pytest.param([], {"ecc": {"uncorrected_volatile": 2}, "recovery_action": None}, RESET, id="ECC errors, the driver not asked"),
        pytest.param([], {"ecc": {"sram_threshold_exceeded": True}}, REPLACE, id="SRAM worn out"),
        pytest.param([], {"lost": True}, OFF_BUS, id="lost"),
        pytest.param([xid(79)], {"lost": True, "recovery_action": None}, OFF_BUS, id="79"),
        pytest.param(["NVRM: GPU 0000:00:00.0: GPU has fallen off the bus."], {}, OFF_BUS, id="fallen off the bus without a code"),
        pytest.param([xid(74)], {}, ("nvlink", "gpu", "observe", "none", "certain"), id="74, the driver content"),
        pytest.param(
            [xid(74)], {"recovery_action": None}, ("nvlink", "gpu", "quarantine_gpu", "reset_gpu", "certain"), id="74, an old driver"
        ),
        pytest.param(
            [xid(149, "NETIR_LINK_EVT " + FATAL)], {}, ("nvlink", "gpu", "quarantine_gpu", "reset_gpu", "certain"), id="149 fatal"
        ),
        pytest.param(
            [xid(146, "A_UNIT_OF_TOMORROW " + FATAL)],
            {},
            ("nvlink", "gpu", "quarantine_gpu", "reset_gpu", "certain"),
            id="fatal, unit unknown",
        ),
        pytest.param([xid(145, "RLW_REMAP Nonfatal XC1")], {}, ("nvlink", "gpu", "observe", "none", "certain"), id="145 non-fatal"),
        pytest.param([xid(150)], {}, ("nvlink", "gpu", "hold", "none", "likely"), id="150 without a word"),
        pytest.param(
            [xid(119)], {}, ("firmware", "gpu", "quarantine_gpu", "reset_gpu", "certain"), id="119, of which the driver says nothing"
        ),
        pytest.param([xid(109)], {}, ("driver", "gpu", "observe", "restart_app", "certain"), id="109, the driver content"),
        pytest.param([xid(162)], {}, ("none", "gpu", "none", "none", "certain"), id="162 is good news"),
        pytest.param([xid(163, seconds=5), xid(162, seconds=9)], {}, ("power", "gpu", "none", "none", "certain"), id="163, then 162"),
        pytest.param([xid(162, seconds=5), xid(163, seconds=9)], {}, ("power", "gpu", "observe", "none", "certain"), id="162, then 163"),
        pytest.param([xid(900)], {}, ("unknown", "gpu", "hold", "none", "likely"), id="an unknown code"),
        pytest.param([xid(900, "Fatal")], {}, ("unknown", "gpu", "quarantine_gpu", "none", "likely"), id="an unknown code that says fatal"),
        pytest.param([xid(900), xid(48)], {}, RESET, id="an unknown code beside a known fault"),
        pytest.param([xid(48, index=5), xid(79, index=6)], {}, HEALTHY, id="faults of other GPUs"),
    ],
)
def test_one_gpu(lines, fields, expected):
    verdict = diagnose(evidence(*lines, gpus=[gpu(0, **fields), gpu(1)]), POLICY)
    assert judged(verdict) == expected
    assert (verdict["gpu_uuid"], verdict["pci_bus_id"], verdict["serial"]) == (uuid(0), pci(0), "165000")


@pytest.mark.parametrize(
    "lines, now, expected",
    [
        pytest.param([xid(145, "RLW_REMAP Nonfatal")], "gpu_reset", ("nvlink", "quarantine_gpu", "reset_gpu"), id="NVML asks for more"),
        pytest.param([xid(79), recovery("0x1 (GPU Reset Required)")], None, ("bus", "quarantine_gpu", "reset_gpu"), id="154 asks for less"),
        pytest.param(
            [xid(48), recovery("0x2 (Node Reboot Required)")], None, ("memory", "quarantine_gpu", "reboot_node"), id="154 asks for a reboot"
        ),
        pytest.param([xid(31, pid=7)], "drain_and_reset", ("driver", "quarantine_gpu", "reset_gpu"), id="beside a crash"),
        pytest.param([], "node_reboot", ("driver", "quarantine_gpu", "reboot_node"), id="without any Xid"),
        pytest.param([], "system_reboot", ("driver", "quarantine_gpu", "reboot_node"), id="system reboot"),
        pytest.param([], "drain_p2p", ("nvlink", "quarantine_gpu", "restart_app"), id="drain P2P"),
        pytest.param([xid(79)], "drain_p2p", ("bus", "quarantine_gpu", "reboot_node"), id="no repair, so the table's stands"),
        pytest.param([], "recover_imex_domain", ("fabric", "hold", "none"), id="IMEX"),
        pytest.param([xid(79)], "recover_imex_domain", ("bus", "quarantine_gpu", "reboot_node"), id="IMEX beside a fault"),
        pytest.param([], "unknown_9", ("driver", "quarantine_gpu", "none"), id="something new"),
        pytest.param(
            [recovery("0x1 (GPU Reset Required)", seconds=5), recovery("0x0 (None)", seconds=9)],
            "none",
            ("none", "none", "none"),
            id="taken back",
        ),
        pytest.param(
            [recovery("0x1 (GPU Reset Required)", seconds=5)], "none", ("driver", "quarantine_gpu", "reset_gpu"), id="NVML and 154 disagree"
        ),
        pytest.param([xid(154, "cut")], None, ("driver", "hold", "none"), id="154 without its text"),
        pytest.param([xid(900)], "gpu_reset", ("driver", "quarantine_gpu", "reset_gpu"), id="an unknown code"),
    ],
)
def test_the_driver_speaks_first(lines, now, expected):
    verdict = diagnose(evidence(*lines, gpus=[gpu(0, recovery_action=now)]), POLICY)
    assert (verdict["domain"], verdict["action"], verdict["repair"]) == expected


def test_one_crash_is_one_verdict():
    """The five real lines of an H200: the application's fault, no taint (S14)."""
    lines = (FIXTURES / "h200-580.kmsg").read_text().splitlines()
    board = gpu(0, uuid="GPU-00000000-0000-0000-0000-000000000001", pci_bus_id="0000:00:06.0")
    crash = evidence(*lines, gpus=[board], target=None)
    (verdict,) = diagnose_all(crash, POLICY)
    assert judged(verdict) == CRASH
    assert verdict["xids"] == [13, 31]
    assert verdict["suspects"] == [{"pid": 525, "start_time": None, "container": None, "pod_uid": None, "name": "crash"}]
    assert diagnose(crash, POLICY) == verdict
    assert "crash" in verdict["reasons"][0] and "Xid 13 (4 lines), Xid 31 (1 line)" in verdict["reasons"][0]


def test_the_worst_decides_and_the_others_are_named():
    verdict = diagnose(evidence(xid(31, pid=7), xid(92), xid(95), xid(79)), POLICY)
    assert judged(verdict) == OFF_BUS
    assert verdict["xids"] == [31, 79, 92, 95]
    assert verdict["reasons"][0].startswith("Xid 79")
    assert [reason[:17] for reason in verdict["reasons"] if reason.startswith("Also seen")] == [
        "Also seen: Xid 92",
        "Also seen: Xid 95",
        "Also seen: The ap",
    ]
    assert len(verdict["evidence"]) == 4
    assert {one["boot_id"] for one in verdict["evidence"]} == {BOOT_ID}


def test_the_record():
    verdict = diagnose(evidence(xid(79)), POLICY)
    assert {name: verdict[name] for name in ("schema_version", "policy_version", "node", "node_uid", "evict_blind")} == {
        "schema_version": 1,
        "policy_version": POLICY.version,
        "node": "gpu-1",
        "node_uid": "uid-1",
        "evict_blind": True,
    }
    assert verdict["evidence"][0]["time"] == at(60)


# ---------------------------------------------------------------- S3: the past is no evidence


@pytest.mark.parametrize(
    "event, released, expected",
    [
        pytest.param({}, None, "quarantine_gpu", id="this boot, never released"),
        pytest.param({"boot_id": "another"}, None, "none", id="another boot"),
        pytest.param({}, at(59), "quarantine_gpu", id="after the release"),
        pytest.param({}, at(60), "none", id="at the release"),
        pytest.param({}, {uuid(0): at(99)}, "none", id="before this GPU's release"),
        pytest.param({}, {uuid(1): at(99)}, "quarantine_gpu", id="before another GPU's release"),
        pytest.param({}, {"pci:" + pci(0): at(99)}, "none", id="before its release under its address"),
        pytest.param({}, {"-": at(99), uuid(0): at(5)}, "none", id="before the node's release"),
        pytest.param({}, {"-": "never"}, "quarantine_gpu", id="a release without a time"),
        pytest.param({"boot_id": None}, None, "quarantine_gpu", id="no boot id, time after boot"),
        pytest.param({"boot_id": None, "time": at(-1)}, None, "none", id="no boot id, time before boot"),
        pytest.param({"time": None}, None, "quarantine_gpu", id="no time, this boot"),
        pytest.param({"time": None}, at(59), "hold", id="no time, and a release"),
        pytest.param({"boot_id": None, "time": None}, None, "hold", id="neither"),
    ],
)
def test_only_the_present_counts(event, released, expected):
    """S3: present boot and newer than the last release of that GPU; what cannot be placed is for a person."""
    case = evidence(xid(79), released_at=released)
    case["info"]["xids"][0].update(event)
    verdict = diagnose(case, POLICY)
    assert verdict["action"] == expected
    if expected == "none":
        assert "1 older lines do not count" in says(verdict)


def test_an_undated_crash_is_not_worth_a_person():
    """S3."""
    case = evidence(xid(31, pid=7))
    case["info"]["xids"][0].update(boot_id=None, time=None)
    assert diagnose(case, POLICY)["action"] == "none"


@pytest.mark.parametrize("starts, released", [(-1, None), (60, at(61))])
@pytest.mark.parametrize("silent", [True, False])
def test_an_old_alert_does_not_count(starts, released, silent):
    """S3: an alert of an earlier boot, or from before the release."""
    case = evidence(alert=alert(79, seconds=starts), released_at=released)
    if silent:
        case["info"]["gpus"] = []
        case["info"]["missing"] = [NO_LOG]
    verdict = diagnose(case, POLICY)
    assert verdict["action"] not in QUARANTINES
    assert "does not count" in says(verdict)


# ---------------------------------------------------------------- S12: alert and node


@pytest.mark.parametrize(
    "code, expected",
    [
        pytest.param(79, ("bus", "quarantine_gpu", "certain", True), id="79 is certain, and its work is dead"),
        pytest.param(48, ("memory", "quarantine_gpu", "certain", False), id="48 is certain"),
        pytest.param(109, ("driver", "hold", "none", False), id="109 is not certain"),
        pytest.param(74, ("nvlink", "hold", "none", False), id="nvlink is never certain"),
        pytest.param(31, ("unknown", "hold", "none", False), id="a crash and silence"),
        pytest.param(900, ("unknown", "hold", "none", False), id="an unknown code"),
        pytest.param(None, ("unknown", "hold", "none", False), id="no code"),
    ],
)
def test_a_silent_node(code, expected):
    """S12: silence is not a verdict; only rows that are certain on fleet evidence go on."""
    verdict = diagnose(evidence(info=None, alert=alert(code)), POLICY)
    assert (verdict["domain"], verdict["action"], verdict["certainty"], verdict["evict_blind"]) == expected
    assert verdict["gpu_uuid"] == uuid(0)
    assert diagnose_all(evidence(info=None, alert=alert(code), target=None), POLICY) == [verdict]


def test_a_silent_node_and_nobody_named():
    """S12."""
    verdict = diagnose(evidence(info=None, target=None), POLICY)
    assert (verdict["action"], verdict["scope"], verdict["certainty"]) == ("hold", "node", "none")
    assert diagnose_all(evidence(info=None, target=None), POLICY) == []


@pytest.mark.parametrize(
    "code, lines, fields, missing, expected",
    [
        pytest.param(79, [xid(79)], {}, [], ("quarantine_gpu", "certain"), id="confirmed by the log"),
        pytest.param(79, [], {"lost": True}, [], ("quarantine_gpu", "certain"), id="confirmed by NVML"),
        pytest.param(79, [], {}, [], ("none", "certain"), id="refuted"),
        pytest.param(48, [], {}, [], ("none", "certain"), id="refuted 48"),
        pytest.param(48, [], {}, [NO_LOG], ("hold", "none"), id="NVML sees nothing, the log cannot be read"),
        pytest.param(
            48,
            [],
            {"recovery_action": None, "remapped_rows": {}, "ecc": {}, "memory_total_bytes": None},
            [{"source": "nvml", "why": "no driver"}],
            ("quarantine_gpu", "certain"),
            id="NVML says nothing",
        ),
        pytest.param(31, [], {}, [NO_LOG], ("none", "likely"), id="a crash, the log cannot be read"),
        pytest.param(
            31,
            [],
            {"errors": [{"call": "nvmlDeviceGetRemappedRows", "error": "No Permission"}]},
            [],
            ("none", "likely"),
            id="a crash, no permission",
        ),
        pytest.param(
            48,
            [],
            {"errors": [{"call": "nvmlDeviceGetRemappedRows", "error": "No Permission"}]},
            [],
            ("hold", "none"),
            id="no permission for what counts",
        ),
        pytest.param(
            48,
            [],
            {"errors": [{"call": "nvmlDeviceGetSerial", "error": "No Permission"}]},
            [],
            ("none", "certain"),
            id="no permission for the serial",
        ),
        pytest.param(None, [], {}, [], ("none", "certain"), id="an alert without a code, all well"),
        pytest.param(None, [], {}, [NO_LOG], ("hold", "none"), id="an alert without a code, half an answer"),
        pytest.param(None, [], rows(failure=True), [], ("quarantine_gpu", "certain"), id="an alert without a code, NVML sees it"),
    ],
)
def test_the_node_confirms_or_refutes(code, lines, fields, missing, expected):
    """S12: fleet evidence is confirmed, refuted in full, or stays open; a fence is not lifted by what could not be read."""
    case = evidence(*lines, gpus=[gpu(0, **fields), gpu(1)], alert=alert(code))
    case["info"]["missing"] = missing
    verdict = diagnose(case, POLICY)
    assert (verdict["action"], verdict["certainty"]) == expected
    assert verdict["missing"] == missing
    assert ("The node itself shows what the alert reports." in says(verdict)) == (bool(lines) or "lost" in fields)
    assert all(one["why"] in says(verdict) for one in missing)


@pytest.mark.parametrize("nobody", [None, {}])
def test_half_an_answer_without_an_alert(nobody):
    case = evidence(alert=nobody)
    case["info"]["missing"] = [NO_LOG]
    assert judged(diagnose(case, POLICY)) == ("none", "gpu", "observe", "none", "none")


HANGS = {"errors": [{"call": "nvmlDeviceGetMemoryInfo", "error": "did not answer within 20 s"}]}
SILENT = {"recovery_action": None, "remapped_rows": {}, "ecc": {}, "memory_total_bytes": None, "mig": {}}


@pytest.mark.parametrize(
    "gpus, missing, expected",
    [
        pytest.param(
            [gpu(0, **HANGS), gpu(1)], [NVML_SLOW], ("driver", "gpu", "quarantine_gpu", "reboot_node", "likely"), id="one GPU hangs"
        ),
        pytest.param(
            [gpu(0, **SILENT, **HANGS), gpu(1)],
            [NVML_SLOW],
            ("driver", "gpu", "quarantine_gpu", "reboot_node", "likely"),
            id="one GPU hangs at once",
        ),
        pytest.param(
            [gpu(0, **{**SILENT, **HANGS})],
            [NVML_SLOW],
            ("driver", "node", "quarantine_node", "reboot_node", "likely"),
            id="the only GPU hangs",
        ),
        pytest.param(
            [gpu(0, **SILENT), gpu(1, **SILENT)],
            [NVML_SLOW],
            ("driver", "node", "quarantine_node", "reboot_node", "likely"),
            id="NVML hangs",
        ),
        pytest.param([], [NVML_SLOW], ("driver", "node", "quarantine_node", "reboot_node", "likely"), id="NVML hangs, no GPU known"),
        pytest.param([gpu(0), gpu(1, **SILENT, **HANGS)], [NVML_SLOW], HEALTHY, id="another GPU hangs"),
        pytest.param(
            [], [{"source": "nvml", "why": "driver not loaded"}], ("driver", "node", "hold", "none", "likely"), id="driver not loaded"
        ),
        pytest.param([gpu(1)], [], ("bus", "gpu", "hold", "none", "likely"), id="not listed"),
        pytest.param([], [], ("bus", "gpu", "hold", "none", "likely"), id="no GPU at all"),
    ],
)
def test_nvml_hangs_or_fails(gpus, missing, expected):
    """S12: the node answers and NVML hangs."""
    case = evidence(gpus=gpus)
    case["info"]["missing"] = missing
    assert judged(diagnose(case, POLICY)) == expected


def test_an_abandoned_reader_is_a_hang():
    """S20's reader, left in the driver, tells that NVML hangs."""
    case = evidence(gpus=[], target=None)
    case["info"]["abandoned"] = [{"source": "nvml", "pid": 4242, "since": at(1)}]
    (verdict,) = diagnose_all(case, POLICY)
    assert judged(verdict) == ("driver", "node", "quarantine_node", "reboot_node", "likely")


def test_a_hung_node_is_one_verdict_and_not_one_a_gpu():
    case = evidence(gpus=[gpu(index, **SILENT) for index in range(8)], target=None)
    case["info"]["missing"] = [NVML_SLOW]
    (verdict,) = diagnose_all(case, POLICY)
    assert (verdict["gpu_uuid"], verdict["scope"], verdict["action"]) == (None, "node", "quarantine_node")


# ---------------------------------------------------------------- which GPU


@pytest.mark.parametrize(
    "target",
    [
        {"uuid": uuid(3)},
        {"pci_bus_id": "00000000:03:00.0"},
        {"index": 3},
        {"index": "3"},
        {"uuid": uuid(3), "pci_bus_id": pci(5), "index": 6},
        {"uuid": "MIG-3"},
    ],
)
def test_the_gpu_is_found(target):
    gpus = [gpu(index) for index in range(8)]
    gpus[3]["mig"] = {"current": True, "instances": [{"uuid": "MIG-3", "gi": 2, "ci": 0}, {"uuid": None, "gi": 3, "ci": None}]}
    case = evidence(xid(95, index=3), gpus=gpus, gpu=target)
    verdict = diagnose(case, POLICY)
    assert (verdict["gpu_uuid"], verdict["action"]) == (uuid(3), "quarantine_gpu")
    assert ("index" in says(verdict)) == (set(target) == {"index"})


def test_a_gpu_that_nvml_lost_is_known_from_the_log():
    lines = [f"NVRM: GPU at PCI:{pci(3)[:-2]}: {uuid(3)}", "NVRM: GPU Board Serial Number: 165003", xid(79, index=3)]
    case = evidence(*lines, gpus=[gpu(0), gpu(1)], target=3)
    verdict = diagnose(case, POLICY)
    assert (verdict["pci_bus_id"], verdict["serial"]) == (pci(3), "165003")
    assert judged(verdict) == OFF_BUS
    assert diagnose_all({**case, "gpu": None}, POLICY)[0]["gpu_uuid"] == uuid(3)


def test_an_index_is_never_certain():
    verdict = diagnose(evidence(info=None, gpu={"index": 0}, alert=alert(79, index=None, gpu_index=0)), POLICY)
    assert (verdict["action"], verdict["certainty"], verdict["gpu_uuid"]) == ("quarantine_gpu", "likely", None)
    assert "index 0 only" in says(verdict)


def test_an_index_that_moved():
    """With GPU 0 lost NVML numbers the others anew, so that index 0 is a healthy neighbour."""
    gpus = [{**gpu(number), "index": number - 1} for number in range(1, 8)]
    case = evidence(xid(79, index=0), gpus=gpus, gpu=None, target=None, alert=alert(79, index=None, gpu_index=0))
    verdict = diagnose(case, POLICY)
    assert (verdict["pci_bus_id"], verdict["action"], verdict["certainty"]) == (pci(0), "quarantine_gpu", "certain")
    assert "alone" in says(verdict)
    assert [one["pci_bus_id"] for one in diagnose_all(case, POLICY)] == [pci(0)]


def test_an_index_and_two_gpus_with_the_xid():
    case = evidence(xid(79, index=4), xid(79, index=5), gpu={"index": 0}, alert=alert(79, index=None))
    assert diagnose(case, POLICY)["gpu_uuid"] == uuid(0)


@pytest.mark.parametrize("target", [{"uuid": "GPU-gone"}, {"pci_bus_id": "0000:99:00.0"}, {"index": 9}])
def test_a_gpu_that_is_not_there(target):
    verdict = diagnose(evidence(gpu=target), POLICY)
    assert judged(verdict) == ("bus", "gpu", "hold", "none", "likely")


# ---------------------------------------------------------------- the node as a whole


def test_all_sick_gpus_worst_first():
    case = evidence(xid(31, index=1, pid=7), xid(79, index=2), xid(48, index=4), xid(92, index=6), target=None)
    verdicts = diagnose_all(case, POLICY)
    assert [(one["gpu_uuid"], one["action"]) for one in verdicts] == [
        (uuid(2), "quarantine_gpu"),
        (uuid(4), "quarantine_gpu"),
        (uuid(6), "observe"),
        (uuid(1), "none"),
    ]
    assert diagnose(case, POLICY) == verdicts[0]


def test_a_healthy_node():
    case = evidence(target=None)
    assert diagnose_all(case, POLICY) == []
    assert judged(diagnose(case, POLICY)) == ("none", "node", "none", "none", "certain")


@pytest.mark.parametrize(
    "words, expected",
    [
        ("Fatal, Link 12 Always Fatal", ("fabric", "node", "quarantine_node", "reboot_node", "certain")),
        ("Non-fatal, Link 04", ("fabric", "node", "observe", "none", "certain")),
        ("Link 04", ("fabric", "node", "hold", "none", "certain")),
    ],
)
@pytest.mark.parametrize("target", [None, 0])
def test_sxid(words, expected, target):
    line = f"[   60.000000] nvidia-nvswitch0: SXid (PCI:0000:a6:00.0): 23001, {words}"
    verdict = diagnose(evidence(line, target=target), POLICY)
    assert judged(verdict) == expected
    assert verdict["gpu_uuid"] == (None if target is None else uuid(0))


def test_the_detail_lines_of_an_sxid_have_no_word():
    head = "[   60.000000] nvidia-nvswitch0: SXid (PCI:0000:a6:00.0): 12028, "
    case = evidence(head + "Non-fatal, Link 32 egress", head + "Data {0x00140004}", target=None)
    assert diagnose(case, POLICY)["action"] == "observe"


def test_a_line_that_names_no_gpu():
    case = evidence("[   60.000000] NVRM: fallen off the bus and is not responding to commands.", target=None)
    assert judged(diagnose(case, POLICY)) == ("bus", "node", "hold", "none", "likely")
    assert diagnose(evidence("[   60.000000] NVRM: Xid (?): 31, pid=1, name=a", target=None), POLICY)["action"] == "none"


@pytest.mark.parametrize(
    "code, lines, missing, action",
    [
        pytest.param(79, [xid(79, index=4)], [], "quarantine_gpu", id="some GPU has it"),
        pytest.param(79, [], [], "none", id="no GPU has it"),
        pytest.param(79, [], [NO_LOG], "quarantine_gpu", id="the log cannot be read"),
        pytest.param(74, [], [NO_LOG], "hold", id="not certain, the log cannot be read"),
    ],
)
def test_an_alert_that_names_no_gpu(code, lines, missing, action):
    case = evidence(*lines, target=None, alert=alert(code, index=None))
    case["info"]["missing"] = missing
    verdict = diagnose(case, POLICY)
    assert verdict["action"] == action
    assert verdict["gpu_uuid"] == (uuid(4) if lines else None)


# ---------------------------------------------------------------- MIG, MPS, suspects


def test_a_mig_instance():
    lines = [xid(94, pid=7, where=" GPU-I:02 GPU-CI:00", seconds=60)]
    verdict = diagnose(evidence(*lines, gpus=[gpu(0, mig={"current": True, "instances": []})]), POLICY)
    assert (verdict["scope"], verdict["gi"], verdict["ci"]) == ("mig_instance", 2, 0)


def test_two_mig_instances():
    lines = [xid(31, pid=7, where=" GPU-I:02 GPU-CI:00"), xid(31, pid=8, where=" GPU-I:03 GPU-CI:00")]
    verdict = diagnose(evidence(*lines), POLICY)
    assert (verdict["scope"], verdict["gi"], verdict["ci"]) == ("process", None, None)


def test_an_alert_may_name_the_instance():
    board = gpu(0, mig={"current": True, "instances": [{"uuid": "MIG-3", "gi": 2, "ci": 0}]})
    case = evidence(gpus=[board], target=None, alert=alert(31, gpu_uuid="MIG-3"))
    case["info"]["missing"] = [NO_LOG]
    verdict = diagnose(case, POLICY)
    assert (verdict["gpu_uuid"], verdict["gi"], verdict["ci"]) == (uuid(0), 2, 0)


def test_a_gpu_fault_under_mig_is_the_gpus():
    verdict = diagnose(evidence(xid(95, where=" GPU-I:02 GPU-CI:00")), POLICY)
    assert (verdict["scope"], verdict["gi"]) == ("gpu", None)


SERVER = process(900, "nvidia-cuda-mps-server")


@pytest.mark.parametrize(
    "processes",
    [
        pytest.param([SERVER, process(7, "innocent", "mps"), process(8, "guilty", "mps")], id="clients marked"),
        pytest.param([SERVER, process(7, "innocent"), process(8, "guilty")], id="clients not marked"),
        pytest.param(
            [process(900, "nvidia-cuda-mps", executable=None), process(7, "innocent"), process(8, "guilty")], id="name cut by the kernel"
        ),
    ],
)
def test_mps_has_suspects_and_no_culprit(processes):
    """Measured: under MPS the Xid names an innocent client."""
    verdict = diagnose(evidence(xid(31, pid=7, name="innocent"), gpus=[gpu(0, processes=processes)]), POLICY)
    assert judged(verdict) == ("application", "process", "observe", "restart_app", "likely")
    assert [one["pid"] for one in verdict["suspects"]] == [7, 8]
    assert "one of 2 suspects" in says(verdict)


def test_a_suspect_that_still_lives():
    verdict = diagnose(evidence(xid(31, pid=7, name="train"), gpus=[gpu(0, processes=[process(7), process(8)])]), POLICY)
    assert verdict["suspects"] == [{"pid": 7, "start_time": at(10), "container": "c7", "pod_uid": "pod-7", "name": "train"}]


def test_a_suspect_outside_containers():
    alive = process(7, container=None, name=None)
    verdict = diagnose(evidence(xid(31, pid=7, name="train"), gpus=[gpu(0, processes=[alive])]), POLICY)
    assert verdict["suspects"] == [{"pid": 7, "start_time": at(10), "container": None, "pod_uid": None, "name": "train"}]


def test_a_pid_that_was_given_again():
    """S10: a process that started after the fault is not the one that the line names."""
    verdict = diagnose(evidence(xid(31, pid=7, name="old"), gpus=[gpu(0, processes=[process(7, "new", start_time=at(61))])]), POLICY)
    assert verdict["suspects"] == [{"pid": 7, "start_time": None, "container": None, "pod_uid": None, "name": "old"}]


def test_a_broken_gpu_has_no_suspects():
    assert diagnose(evidence(xid(31, pid=7), xid(79)), POLICY)["suspects"] == []


# ---------------------------------------------------------------- S14


def crashes(*names, index=0):
    return [xid(31, pid=number + 100, name=name, index=index) for number, name in enumerate(names)]


def past(name, hours=1.0, index=0, key="program"):
    moment = (NOW.timestamp() - BOOT_TIME.timestamp()) - hours * 3600
    return {"gpu_uuid": uuid(index), "code": 31, key: name, "time": at(moment)}


@pytest.mark.parametrize(
    "lines, history, released, held",
    [
        pytest.param(crashes("a", "b", "c"), [], None, True, id="three programs"),
        pytest.param(crashes("a", "b"), [], None, False, id="two programs"),
        pytest.param(crashes("a", "a", "a", "b", "b"), [], None, False, id="many crashes of two programs"),
        pytest.param([*crashes("a", "b", "c"), *crashes("c", index=1)], [], None, False, id="one fails elsewhere too"),
        pytest.param([*crashes("a", "b", "c"), *crashes("x", "y", index=1)], [], None, True, id="others fail elsewhere"),
        pytest.param(crashes("a"), [past("b"), past("c")], None, True, id="with the ledger's memory"),
        pytest.param(crashes("a"), [past("b", key="executable_or_image"), past("c")], None, True, id="the memory's older key"),
        pytest.param(crashes("a"), [past("b"), past("c", hours=25)], None, False, id="longer than a day ago"),
        pytest.param(crashes("a"), [past("b"), past("c"), past("c", index=1)], None, False, id="the memory knows another GPU"),
        pytest.param(crashes("a"), [past("b", hours=0.98), past("c", hours=0.98)], at(50), True, id="since the release"),
        pytest.param(crashes("a"), [past("b"), past("c")], at(50), False, id="before the release"),
        pytest.param(
            [xid(13, name=name, pid=1) for name in ("a",)] + crashes("b") + [xid(43, name="c", pid=3)], [], None, True, id="mixed codes"
        ),
        pytest.param([xid(31), xid(31), xid(31)], [], None, False, id="no names"),
        pytest.param(
            [*crashes("a", "b"), xid(45, "Ch 8 caused by previous Xid 79", pid=9, name="c")], [], None, None, id="killed by the GPU"
        ),
    ],
)
def test_different_programs_on_one_gpu_only(lines, history, released, held):
    """S14: held for a person, never tainted by itself."""
    verdict = diagnose(evidence(*lines, history=history, released_at=released), POLICY)
    if held is None:
        assert judged(verdict) == OFF_BUS
    else:
        assert judged(verdict) == (("unknown", "gpu", "hold", "none", "likely") if held else CRASH)


def test_s14_names_the_programs():
    """S14: by their executable where the process still lives."""
    alive = process(101, "b", executable="/opt/b/bin/b")
    verdict = diagnose(evidence(*crashes("a", "b", "c"), gpus=[gpu(0, processes=[alive]), gpu(1)]), POLICY)
    assert "/opt/b/bin/b, a, c" in verdict["reasons"][0]
    assert [one["name"] for one in verdict["suspects"]] == ["a", "b", "c"]


def test_s14_does_not_count_names_under_mps():
    """S14: under MPS the line names any client."""
    board = gpu(0, processes=[SERVER, *(process(100 + number, name, "mps") for number, name in enumerate("abc"))])
    assert diagnose(evidence(*crashes("a", "b", "c"), gpus=[board]), POLICY)["action"] == "observe"


def test_s14_without_a_clock():
    """S14: evidence that does not say when it was collected is taken whole."""
    case = evidence(*crashes("a"), history=[past("b"), past("c")])
    case["info"]["node"]["collected_at"] = None
    assert diagnose(case, POLICY)["action"] == "hold"


def test_a_storm_of_ten_thousand_lines():
    """S14: 13, 31, 43 and 45 over 8 GPUs, one of which meets the rule: exactly one hold, nothing tainted."""
    chance = random.Random(14)
    everywhere = ["trainer", "server", "notebook", "bench"]
    lines = []
    for number in range(10_000):
        index, code = number % 8, chance.choice((13, 31, 43, 45))
        name = chance.choice(["only-a", "only-b", "only-c", *everywhere] if index == 5 else everywhere)
        lines.append(xid(code, "storm", index, pid=1000 + number, name=name, seconds=60 + number / 100))
    verdicts = diagnose_all(evidence(*lines, target=None), POLICY)
    assert len(verdicts) == 8
    assert [one["gpu_uuid"] for one in verdicts if one["action"] == "hold"] == [uuid(5)]
    assert [one for one in verdicts if one["action"] in QUARANTINES] == []
    assert {one["action"] for one in verdicts} == {"hold", "none"}


def test_800_000_lines_of_one_fault_are_one_verdict():
    """A field report: one node printed 800,000 lines of Xid 95."""
    case = evidence(xid(95), target=None)
    case["info"]["xids"] = parse_lines([xid(95, f"line {number}") for number in range(5_000)], boot_time=BOOT_TIME, boot_id=BOOT_ID)
    (verdict,) = diagnose_all(case, POLICY)
    assert judged(verdict) == RESET and "(5000 lines)" in verdict["reasons"][0]


def test_kernel_log_and_nvml_tell_of_the_same_xid():
    case = evidence(xid(31, pid=7))
    case["info"]["xids"].append(
        {"source": "nvml", "code": 31, "pci_bus_id": "00000000:00:00.0", "time": at(60.18), "gi": 0xFFFFFFFF, "ci": 0xFFFFFFFF}
    )
    verdict = diagnose(case, POLICY)
    assert judged(verdict) == CRASH
    assert (verdict["gi"], verdict["evidence"][0]["source"]) == (None, "kernel_log+nvml")


def test_the_lines_of_info_are_enough():
    """The whole of gpu_info's result goes in as it is."""
    assert diagnose({"info": info(xid(79), changed=False, failed=False), "gpu": {"index": 0}}, POLICY)["action"] == "quarantine_gpu"


@pytest.mark.parametrize("code", [79, 48, 31, None])
@pytest.mark.parametrize("case", [{"info": None}, evidence(gpus=[gpu(0, errors=[])])], ids=["the node is silent", "it says little"])
def test_a_hint_alone_proves_nothing(code, case):
    """S3: the recorded past makes somebody look; without the node nothing comes of it, whatever the policy's row says."""
    given = {**evidence(), **case, "missing": [{"source": "kernel_log", "why": "EACCES"}], "alert": alert(code, hint=True)}
    verdict = diagnose(given, POLICY)
    assert verdict["certainty"] == "none" and verdict["action"] in ("hold", "observe", "none")
    assert "was over when somebody looked" in says(verdict)

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import random

import pytest
from alerts import recorded, rewritten
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.replay import RecordingInvalid, of_kernel_log, of_message
from ansible_collections.gpuops.remediation.plugins.module_utils._xid.policy import QUARANTINES, load_policy
from gpu_evidence import BOOT_TIME, FIXTURES, POLICY_FILE, pci, uuid, xid

POLICY = load_policy(str(POLICY_FILE))
NAMES = [f"[   30.000000] NVRM: GPU at PCI:{pci(index)[:-2]}: {uuid(index)}" for index in range(8)]


def faults(*lines, boot_time=BOOT_TIME):
    return list(of_kernel_log(lines, "gpu-1", POLICY, boot_time))


def judged(fault):
    return fault.verdict["action"], fault.verdict["certainty"], fault.fences


def of_xid(code, **labels):
    message = rewritten(recorded("firing-single"), {"gpu": None, "gpu_uuid": uuid(3), "xid": code, **labels}, annotations={"xid": None})
    [fault] = of_message(json.dumps(message).encode(), POLICY).faults
    return fault


@pytest.mark.parametrize(
    "code, labels, expected",
    [
        pytest.param("79", {}, ("quarantine_gpu", "certain", True), id="certain without the node"),
        pytest.param("79", {"gpu_uuid": None, "gpu": "3"}, ("quarantine_gpu", "likely", False), id="an index is a hint"),
        pytest.param("13", {}, ("none", "likely", False), id="an application's"),
        pytest.param("74", {}, ("quarantine_gpu", "likely", False), id="nvlink never fences on fleet evidence"),
        pytest.param(None, {}, ("hold", "none", False), id="without an Xid"),
    ],
)
def test_an_alert(code, labels, expected):
    assert judged(of_xid(code, **labels)) == expected


def test_a_message_is_judged_alert_by_alert():
    """S2: a bad alert is held, its own text is not quoted, and the others go on."""
    message = recorded("truncated-max_alerts-1")
    message["alerts"] += [{"status": "firing", "startsAt": "2026-11-29T20:19:40Z", "labels": {"node": "{{ canary }}"}}]
    replayed = of_message(json.dumps(message).encode(), POLICY)
    assert (len(replayed.faults), replayed.held, replayed.truncated) == (1, ["label node is not a node name"], 1)


def test_a_real_log():
    [fault] = faults(*(FIXTURES / "h200-580.kmsg").read_text().splitlines())
    assert (judged(fault), fault.verdict["xids"]) == (("none", "likely", False), [13, 31])
    assert fault.alert.gpu == "GPU-00000000-0000-0000-0000-000000000001"
    assert fault.alert.starts_at.isoformat() == "2026-11-29T20:00:28.922271+00:00"


def test_episodes():
    """A crash, and hours later a GPU that is lost, are two; lines between which there was no pause are one."""
    found = faults(*NAMES, xid(13, pid=7), xid(31, seconds=700, pid=7), xid(79, seconds=9000), xid(48, index=1, seconds=9010))
    assert [(fault.alert.gpu, fault.verdict["xids"], fault.fences) for fault in found] == [
        (uuid(0), [13, 31], False),
        (uuid(0), [79], True),
        (uuid(1), [48], True),
    ]


def test_a_reboot_ends_an_episode():
    entries = [
        {"MESSAGE": f"NVRM: Xid (PCI:0000:00:00): {code}, GPU", "_TRANSPORT": "kernel", "_BOOT_ID": boot * 32, "__REALTIME_TIMESTAMP": at}
        for code, boot, at in ((79, "a", "1764446400000000"), (79, "b", "1764446460000000"))
    ]
    assert len(faults(*map(json.dumps, entries), boot_time=None)) == 2


def test_a_storm_of_ten_thousand_lines():
    """S14: over 8 GPUs, one of which meets the rule: exactly one hold, nothing tainted."""
    chance = random.Random(14)
    everywhere = ["trainer", "server", "notebook", "bench"]
    lines = list(NAMES)
    for number in range(10_000):
        index, code = number % 8, chance.choice((13, 31, 43, 45))
        name = chance.choice(["only-a", "only-b", "only-c", *everywhere] if index == 5 else everywhere)
        lines.append(xid(code, "storm", index, pid=1000 + number, name=name, seconds=60 + number / 100))
    found = faults(*lines)
    assert [fault.alert.gpu for fault in found if fault.verdict["action"] == "hold"] == [uuid(5)]
    assert len(found) == 8 and not any(fault.verdict["action"] in QUARANTINES for fault in found)


def test_programs_that_failed_in_earlier_episodes_count():
    """S14: within a day, by the programs' names."""
    found = faults(*NAMES, *(xid(13, pid=100 + hour, name=f"program-{hour}", seconds=60 + 3600 * hour) for hour in range(3)))
    assert [fault.verdict["action"] for fault in found] == ["none", "none", "hold"]


def test_a_log_without_dates_is_refused():
    with pytest.raises(RecordingInvalid, match="boot_time"):
        faults(xid(79), boot_time=None)

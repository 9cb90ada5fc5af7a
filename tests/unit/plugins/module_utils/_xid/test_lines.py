# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from datetime import datetime, timezone

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._xid.lines import (
    gpu_identities,
    normalize_pci,
    parse_line,
    parse_lines,
)
from gpu_evidence import BOOT_ID, BOOT_TIME, FIXTURES
from hypothesis import given
from hypothesis import strategies as st

XID = "NVRM: Xid (PCI:0000:3b:00): "


def fields(line, **options):
    """What a line says, without what it leaves open."""
    event = parse_line(line, **options)
    assert event is not None, line
    return {
        name: value
        for name, value in event.items()
        if value is not None and value is not False and value != "" and name not in ("source", "raw")
    }


@pytest.mark.parametrize(
    "line, expected",
    [
        pytest.param(XID + "79, GPU has fallen off the bus.", {"code": 79, "fallen_off_bus": True}, id="no pid"),
        pytest.param(XID + "43, pid=525, name=crash, channel 0x10", {"code": 43, "pid": 525, "process_name": "crash"}, id="pid and name"),
        pytest.param(XID + "31, pid='<unknown>', name=<unknown>, MMU Fault", {"code": 31}, id="unknown quoted"),
        pytest.param(XID + "45, pid=<unknown>, name=<unknown>, Ch 00000008", {"code": 45}, id="unknown bare"),
        pytest.param(
            XID + "8, pid=5678, name=idle_timeout", {"code": 8, "pid": 5678, "process_name": "idle_timeout"}, id="nothing after the name"
        ),
        pytest.param(XID + "8, pid=5678, name=", {"code": 8, "pid": 5678}, id="empty name"),
        pytest.param(XID + "13, pid=7, Graphics Exception", {"code": 13, "pid": 7}, id="pid alone"),
        pytest.param(XID + "31, pid=9, name=a,b c, MMU Fault", {"code": 31, "pid": 9, "process_name": "a,b c"}, id="comma in the name"),
        pytest.param(
            XID + "145, pid=4, name=ray::WorkerDict, RLW_RXPIPE", {"code": 145, "pid": 4, "process_name": "ray::WorkerDict"}, id="colons"
        ),
        pytest.param(XID + "46", {"code": 46}, id="nothing after the code"),
        pytest.param(XID + "46 GPU stopped processing", {"code": 46}, id="no comma after the code"),
        pytest.param("NVRM: Xid (PCI:0000:3b:00.0): 62, halted", {"code": 62}, id="PCI function"),
        pytest.param("NVRM: Xid (0000:3b:00): 62, halted", {"code": 62}, id="no PCI: word"),
        pytest.param("NVRM: Xid (PCI:00000000:3B:00): 62, halted", {"code": 62}, id="long domain, capitals"),
        pytest.param("NVRM: Xid (PCI:0000:3b:00 GPU-I:05 GPU-CI:01): 94, x", {"code": 94, "gi": 5, "ci": 1}, id="GPU and compute instance"),
        pytest.param("NVRM: Xid (PCI:0000:3b:00 GPU-I:00): 94, x", {"code": 94, "gi": 0}, id="GPU instance zero"),
        pytest.param(
            XID + "45, pid=1, name=a, Ch 8 caused by previous Xid 149",
            {"code": 45, "pid": 1, "process_name": "a", "caused_by": 149},
            id="cause",
        ),
        pytest.param(XID + "999, something new", {"code": 999}, id="a code of the future"),
    ],
)
def test_xid_grammars(line, expected):
    found = fields(line)
    found.pop("text", None), found.pop("nvlink", None)
    assert found == {"pci_bus_id": "0000:3b:00.0", **expected}


@pytest.mark.parametrize(
    "line, action",
    [
        ("154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", "gpu_reset"),
        ("154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", "node_reboot"),
        ("154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", "none"),
        ("154, pid='<unknown>', name=<unknown>, GPU recovery action changed from 0x0 (None) to 0x3 (Drain P2P)", "drain_p2p"),
        ("154, something else", None),
        ("79, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", None),
    ],
)
def test_the_recovery_action_of_154(line, action):
    assert parse_line(XID + line)["recovery_action"] == action


@pytest.mark.parametrize(
    "words, severity, nvlink",
    [
        pytest.param(
            "NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x004525c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)",
            "fatal",
            {"unit": "NETIR_LINK_EVT", "link": 9, "intr_info": "0x004525c6", "error_status": "0x00000000", "subcode": 4},
            id="fatal",
        ),
        pytest.param(
            "RLW_SRC_TRACK Nonfatal XC1 i0 Link 12 (0x040988e2 0x00000008)",
            "nonfatal",
            {"unit": "RLW_SRC_TRACK", "link": 12, "intr_info": "0x040988e2", "error_status": "0x00000008", "subcode": 0},
            id="nonfatal",
        ),
        pytest.param(
            "NETIR Fatal XC0 i0 Link -1 (0x000fe406",
            "fatal",
            {"unit": "NETIR", "link": -1, "intr_info": "0x000fe406", "error_status": None, "subcode": 0},
            id="cut off",
        ),
        pytest.param(
            "MSE_WATCHDOG",
            None,
            {"unit": "MSE_WATCHDOG", "link": None, "intr_info": None, "error_status": None, "subcode": None},
            id="no word",
        ),
        pytest.param("", None, {"unit": None, "link": None, "intr_info": None, "error_status": None, "subcode": None}, id="nothing"),
    ],
)
@pytest.mark.parametrize("who", ["", "pid=876767, name=ray::WorkerDict, "])
@pytest.mark.parametrize("code", [144, 150])
def test_nvlink5(words, severity, nvlink, who, code):
    event = parse_line(f"{XID}{code}, {who}{words}")
    assert (event["code"], event["severity"], event["nvlink"]) == (code, severity, nvlink)


@pytest.mark.parametrize(
    "line, code, severity",
    [
        ("nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20009, Non-fatal, Link 04 RX Short Error Rate", 20009, "nonfatal"),
        ("nvidia-nvswitch0: SXid (PCI:0000:06:00.0): 23001, Fatal, Link 12", 23001, "fatal"),
        ("nvidia-nvswitch3: SXid (PCI:0000:06:00.0): 12028, Severity 0 Engine instance 32", 12028, "nonfatal"),
        ("nvidia-nvswitch3: SXid (PCI:0000:06:00.0): 12028, Severity 1 Engine instance 32", 12028, "fatal"),
        ("nvidia-nvswitch3 SXid (PCI:0000:06:00.0): 12028, Data {0x00140004}", 12028, None),
    ],
)
def test_sxid(line, code, severity):
    event = parse_line(line)
    assert (event["sxid"], event["code"], event["severity"], event["pci_bus_id"]) == (True, code, severity, "0000:06:00.0")


@pytest.mark.parametrize(
    "line, pci",
    [
        ("NVRM: GPU 0000:91:00.0: GPU has fallen off the bus.", "0000:91:00.0"),
        ("NVRM: GPU at 0000:08:00.0 has fallen off the bus.", "0000:08:00.0"),
        ("NVRM: fallen off the bus and is not responding to commands.", None),
    ],
)
def test_fallen_off_the_bus_without_a_code(line, pci):
    event = parse_line(line)
    assert (event["fallen_off_bus"], event["code"], event["pci_bus_id"]) == (True, None, pci)


BODY = XID + "79, GPU has fallen off the bus."
SINCE_BOOT = "2026-11-29T20:00:28.922271+00:00"


@pytest.mark.parametrize(
    "prefix, time",
    [
        pytest.param("", None, id="bare"),
        pytest.param("4,1234,28922271,-;", SINCE_BOOT, id="kmsg"),
        pytest.param("4,1234,28922271,c,caller=T123;", SINCE_BOOT, id="kmsg with caller"),
        pytest.param("[   28.922271] ", SINCE_BOOT, id="dmesg"),
        pytest.param("<4>[   28.922271] ", SINCE_BOOT, id="dmesg -r"),
        pytest.param("[   28.922271][  T123] ", SINCE_BOOT, id="printk caller"),
        pytest.param("[Fri Aug 30 11:43:14 2024] ", None, id="dmesg -T is local time"),
        pytest.param("2026-11-29T20:00:28,922271+00:00 ", SINCE_BOOT, id="dmesg --time-format iso"),
        pytest.param("Jun 11 09:44:44 gpu-1 kernel: ", None, id="syslog has no year"),
        pytest.param("Jun  1 09:44:44 gpu-1 kernel: [   28.922271] ", SINCE_BOOT, id="syslog with uptime"),
        pytest.param("Nov 29 20:00:28.922271 gpu-1 kernel: ", None, id="journalctl short-precise"),
        pytest.param("2026-11-29T21:00:28.922271+0100 gpu-1 kernel: ", SINCE_BOOT, id="journalctl short-iso"),
        pytest.param("Sun 2026-11-29 20:00:28 UTC gpu-1 kernel: ", "2026-11-29T20:00:28+00:00", id="journalctl short-full"),
        pytest.param("Sun 2026-11-29 20:00:28 CET gpu-1 kernel: ", None, id="short-full in another zone"),
        pytest.param("[   28.922271] gpu-1 kernel: ", SINCE_BOOT, id="journalctl short-monotonic"),
        pytest.param("1795982428.922271 gpu-1 kernel: ", SINCE_BOOT, id="journalctl short-unix"),
        pytest.param("kernel: [   28.922271] ", SINCE_BOOT, id="no host"),
    ],
)
def test_prefixes(prefix, time):
    event = parse_line(prefix + BODY, boot_time=BOOT_TIME, boot_id=BOOT_ID)
    assert (event["code"], event["time"], event["boot_id"]) == (79, time, BOOT_ID)
    assert event["raw"] == prefix + BODY


def test_kmsg_record_with_device_properties():
    event = parse_line("4,1,28922271,-;" + XID + "46, stopped\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n")
    assert event["text"] == "stopped"


def journal(**fields):
    return json.dumps(
        {
            "MESSAGE": BODY,
            "_TRANSPORT": "kernel",
            "__REALTIME_TIMESTAMP": "1795982428922271",
            "_BOOT_ID": BOOT_ID.replace("-", ""),
            **fields,
        }
    )


def test_journal_json_knows_time_and_boot():
    event = parse_line(journal())
    assert (event["code"], event["time"], event["boot_id"]) == (79, SINCE_BOOT, BOOT_ID)
    event = parse_line(journal(__REALTIME_TIMESTAMP="soon", _BOOT_ID="?"))
    assert (event["code"], event["time"], event["boot_id"]) == (79, None, None)


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(journal(_TRANSPORT="syslog", SYSLOG_IDENTIFIER="kernel"), id="logger -t kernel"),
        pytest.param(journal(MESSAGE=None), id="no message"),
        pytest.param("{", id="half an entry"),
        pytest.param("audit: proctitle=" + BODY, id="inside somebody else's message"),
        pytest.param("python3[77]: " + BODY, id="a program's own log"),
        pytest.param("gpu-1 " + BODY, id="a host and no kernel"),
        pytest.param("NVRM: Xid : 32, pid=2280636", id="no parentheses"),
        pytest.param("NVRM: Xid (PCI:0000:66:00): abc, pid=2280636", id="no number"),
        pytest.param("NVRM: Xid (PCI:0000:66:00): 79abc", id="half a number"),
        pytest.param("NVRM: Xid (PCI:0000:66:00): 1234567890", id="no code has ten digits"),
        pytest.param("NVRM: GPU at PCI:0000:66:00: GPU-12345678-1234-5678-9abc-def012345678", id="identity"),
        pytest.param("NVRM: loading NVIDIA UNIX Open Kernel Module", id="other driver line"),
        pytest.param("", id="empty"),
        pytest.param(None, id="None"),
        pytest.param(b"NVRM: Xid (PCI:0000:66:00): 79", id="bytes"),
    ],
)
def test_no_event(line):
    assert parse_line(line) is None


@pytest.mark.parametrize(
    "text, address",
    [
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("PCI:0000:3b:00", "0000:3b:00.0"),
        ("00010000:3b:00.1", "10000:3b:00.1"),
        ("3b:00.0", None),
        ("GPU-1", None),
        (None, None),
    ],
)
def test_normalize_pci(text, address):
    assert normalize_pci(text) == address


def test_the_real_lines_of_one_crash():
    lines = (FIXTURES / "h200-580.kmsg").read_text().splitlines()
    events = parse_lines(lines, boot_time=BOOT_TIME)
    assert [(event["code"], event["pid"], event["process_name"]) for event in events] == [
        (13, None, None),
        (13, None, None),
        (13, None, None),
        (13, 525, "crash"),
        (31, 525, "crash"),
    ]
    assert {event["pci_bus_id"] for event in events} == {"0000:00:06.0"}
    assert events[-1]["time"] == "2026-11-29T20:00:29.105254+00:00"
    assert events[-1]["text"].startswith("channel 0x0000000a, intr 00000000. MMU Fault")


def test_identities():
    lines = (FIXTURES / "h200-580.kmsg").read_text().splitlines()
    known = {"0000:00:06.0": {"uuid": "GPU-00000000-0000-0000-0000-000000000001", "serial": "0000000000001"}}
    assert gpu_identities(lines) == known
    assert gpu_identities([*lines, "usb 1-1: new", "NVRM: GPU Board Serial Number: 99", None]) == known


def test_a_log_without_end_is_cut():
    event = parse_line(XID + "46, " + "x" * 1_000_000)
    assert event["code"] == 46 and len(event["raw"]) == 8192


def test_times_beyond_the_calendar():
    assert parse_line("4,1,999999999999999,-;" + BODY, boot_time=datetime(9999, 12, 31, tzinfo=timezone.utc))["time"] is None


PIECES = st.sampled_from(
    [
        "NVRM: ",
        "Xid ",
        "(PCI:",
        "0000:3b:00",
        ".0",
        " GPU-I:",
        "GPU-CI:",
        "): ",
        "154, ",
        "149, ",
        "pid=",
        "'<unknown>'",
        ", name=",
        "Fatal",
        "Nonfatal",
        "recovery action changed",
        " to ",
        "0x",
        "(None)",
        "nvidia-nvswitch0: ",
        "SXid ",
        "fallen off the bus",
        "4,1,28,-;",
        "[  28.9] ",
        "{",
        '"MESSAGE"',
        "²",
        "\n",
        "\x00",
        "caused by previous Xid ",
        "Link ",
        "kernel: ",
        "2026-11-29T20:00:28Z ",
        "9" * 30,
        "²³",
        "١٢٣",
    ]
)


@given(st.lists(PIECES | st.text(max_size=8) | st.integers().map(str), max_size=24).map("".join) | st.text() | st.binary() | st.none())
def test_whatever_it_reads_it_never_raises(line):
    event = parse_line(line, boot_time=BOOT_TIME)
    gpu_identities([line])
    assert event is None or json.dumps(event)


@given(
    st.integers(1, 999),
    st.integers(0, 0xFFFF),
    st.integers(0, 255),
    st.integers(0, 31),
    st.text(alphabet="abc-_. /:", min_size=1, max_size=15),
    st.integers(1, 4194304),
)
def test_what_the_driver_prints_is_read_back(code, domain, bus, device, name, pid):
    name = name.strip() or "x"
    event = parse_line(f"NVRM: Xid (PCI:{domain:04x}:{bus:02x}:{device:02x}): {code}, pid={pid}, name={name}, text")
    assert (event["code"], event["pid"], event["process_name"]) == (code, pid, name)
    assert event["pci_bus_id"] == f"{domain:04x}:{bus:02x}:{device:02x}.0"

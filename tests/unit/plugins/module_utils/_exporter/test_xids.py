# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible_collections.gpuops.remediation.plugins.module_utils._exporter import xids
from ansible_collections.gpuops.remediation.plugins.module_utils._node import kernel_log

GPU, OTHER = "PCI:0000:00:06", "PCI:0000:00:07"


def told(tmp_path, *records):
    """What the kernel log's reader tells of records: (number, seconds since the boot, text)."""
    path = tmp_path / "kmsg"
    path.write_text("".join(f"3,{number},{int(seconds * 1e6)},-;{text}\n" for number, seconds, text in records))
    items = []
    kernel_log.collect(str(path), 1000, "boot", None, items.append)
    return items


def counted(before, items, since=0.0, now=9999.0):
    return xids.counted(before, items, since, now)


def by_key(counted):
    return {(one["pci_bus_id"], one["gi"], one["code"]): (one["count"], one["last_seconds"]) for one in counted["counts"]}


def test_by_gpu_instance_and_code(tmp_path):
    found = counted(xids.NONE, told(
        tmp_path, (5, 1, f"NVRM: Xid ({GPU}): 31, pid=7, name=a, text"), (6, 2, f"NVRM: Xid ({GPU}): 31, pid=7, name=a, text"),
        (7, 3, f"NVRM: Xid ({GPU} GPU-I:02 GPU-CI:00): 31, text"), (8, 4.5, f"NVRM: Xid ({OTHER}): 79, text"),
    ))  # fmt: skip
    assert found["sequence"] == 8
    assert by_key(found) == {
        ("0000:00:06.0", None, 31): (2, 1002.0), ("0000:00:06.0", 2, 31): (1, 1003.0), ("0000:00:07.0", None, 79): (1, 1004.5),
    }  # fmt: skip


def test_a_line_counts_once_and_is_kept_when_it_is_gone(tmp_path):
    first = counted(xids.NONE, told(tmp_path, (5, 1, f"NVRM: Xid ({GPU}): 79, text")))
    again = counted(first, told(tmp_path, (5, 1, f"NVRM: Xid ({GPU}): 79, text"), (6, 1, f"NVRM: Xid ({GPU}): 79, text")))
    assert by_key(again) == {("0000:00:06.0", None, 79): (2, 1001.0)}, "also of the same moment"
    assert counted(again, []) == again
    assert by_key(first) == {("0000:00:06.0", None, 79): (1, 1001.0)}, "what was written before is not touched"


def test_a_stamp_that_drifted_is_put_right_by_when_the_log_was_read(tmp_path):
    """The last reading did not see the line, and it is there now."""
    log = told(tmp_path, (5, 1, f"NVRM: Xid ({GPU}): 79, text"))
    stamps = {since: by_key(counted(xids.NONE, log, since, now=since + 10)) for since in (0.0, 995.0, 1500.0, 900.0)}
    assert {since: found["0000:00:06.0", None, 79] for since, found in stamps.items()} == {
        0.0: (1, 10.0), 995.0: (1, 1001.0), 1500.0: (1, 1500.0), 900.0: (1, 910.0),
    }  # fmt: skip


def test_what_is_no_gpus_xid_counts_nothing(tmp_path):
    found = counted(xids.NONE, told(
        tmp_path, (5, 1, "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30"), (6, 2, f"NVRM: GPU at {GPU}: GPU-0"),
        (7, 3, "NVRM: GPU 0000:00:06.0: GPU has fallen off the bus."),
    ))  # fmt: skip
    assert found == {"sequence": 7, "counts": []}

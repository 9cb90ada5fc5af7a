# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._node import kernel_log
from ansible_collections.gpuops.remediation.plugins.module_utils._node.kernel_log import KernelLogError, Record, parse_record

XID = "NVRM: Xid (PCI:0000:00:06): 31, pid=525, name=crash, MMU Fault"
LOG = f"""6,1,100,-;Linux version 6.1
4,2,28922262,-;NVRM: GPU at PCI:0000:00:06: GPU-00000000-0000-0000-0000-000000000001
 SUBSYSTEM=pci
3,3,29105254,c;{XID}
6,4,30000000,-;systemd[1]: Started nvidia-persistenced.service
6,5,31000000,-;eth0: link up
"""


@pytest.mark.parametrize(
    ("line", "record"),
    [
        (f"3,3,29105254,-;{XID}", Record(3, 29.105254, XID)),
        ("6,1,5,-,caller=T1;two\\x0alines", Record(1, 5e-6, "two\nlines")),
        (" SUBSYSTEM=pci", None),
        ("no record", None),
        ("", None),
    ],
)
def test_records(line, record):
    assert parse_record(line) == record


def collect(path, since=None):
    items = []
    kernel_log.collect(str(path), 1000.0, "boot", since, items.append)
    return items


def test_gpu_lines_only_with_their_time(tmp_path):
    (tmp_path / "kmsg").write_text(LOG)
    items = collect(tmp_path / "kmsg")
    assert [item["line"].split(",")[1] for item in items] == ["2", "3", "4"]
    [event] = [item["xid"] for item in items if item["xid"]]
    assert (event["code"], event["time"], event["boot_id"], event["source"]) == (
        31,
        "1970-01-01T00:17:09.105254+00:00",
        "boot",
        "kernel_log",
    )


def test_since(tmp_path):
    (tmp_path / "kmsg").write_text(LOG)
    assert [item["line"].split(",")[1] for item in collect(tmp_path / "kmsg", 1029.105254)] == ["4"]


def test_no_kernel_log(tmp_path):
    with pytest.raises(KernelLogError, match="cannot open"):
        collect(tmp_path / "kmsg")


def test_a_device_gives_one_record_at_each_read_and_may_have_lost_some(monkeypatch):
    """As /dev/kmsg does; a character device that can be made to answer so without a driver does not exist."""
    reads = iter([b"3,3,1,-;NVRM: one\n KEY=1\n", OSError(32, "Broken pipe"), b"3,9,2,-;NVRM: two\n", BlockingIOError()])

    def read(fd, size):
        answer = next(reads)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(os, "read", read)
    assert [item["line"] for item in collect("/dev/null")] == ["3,3,1,-;NVRM: one", "3,9,2,-;NVRM: two"]


def test_a_device_that_fails(monkeypatch):
    def read(fd, size):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "read", read)
    with pytest.raises(KernelLogError, match="Input/output error"):
        collect("/dev/null")


@pytest.mark.skipif(not os.access("/dev/kmsg", os.R_OK), reason="only root may read /dev/kmsg")
def test_the_real_kernel_log_ends():
    list(kernel_log.read_lines("/dev/kmsg"))

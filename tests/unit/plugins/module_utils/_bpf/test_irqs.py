# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import struct

from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.durations import Durations
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.irqs import IrqLine, devices


def test_a_line_is_read_with_its_histogram():
    slots = [0] * 32
    slots[0], slots[11], slots[31] = 1, 4, 2
    line = IrqLine.parse(struct.pack("=20sI", b"nvidia", 141), struct.pack("=34Q2Q", 7, 12345, *slots, 1, 3))
    assert (line.irq, line.handler, line.unhandled, line.woken) == (141, "nvidia", 1, 3)
    assert line.durations.show() == {
        "count": 7,
        "total_ns": 12345,
        "histogram": [{"from_ns": 0, "count": 1}, {"from_ns": 2048, "count": 4}, {"from_ns": 1 << 31, "count": 2}],
    }
    assert Durations.parse(bytes(272)).show()["histogram"] == []


def test_a_line_belongs_to_the_device_that_has_it_alone(tmp_path):
    for name, files in (
        ("0000:06:00.0", ("msi_irqs/141", "msi_irqs/142")),
        ("0000:06:00.1", ("irq",)),
        ("0000:07:00.0", ("irq",)),
        ("0000:00:1f.0", ("irq",)),
        ("0000:08:00.0", ("class",)),
    ):
        for file in files:
            path = tmp_path / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text({"0000:06:00.1": "16\n", "0000:07:00.0": "16\n"}.get(name, "0\n"))
    assert devices(tmp_path) == {141: "0000:06:00", 142: "0000:06:00"}
    assert devices(tmp_path / "none") == {}

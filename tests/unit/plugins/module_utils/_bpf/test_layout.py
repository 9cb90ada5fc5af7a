# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf import durations, irqs, launches, mappings, xids
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.functions import NARROW, Operation
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.layout import COUNTERS, KINDS

HEADER = "".join(
    re.sub(r"/\*.*?\*/", "", (Path(__file__).parents[5] / "bpf" / name).read_text(), flags=re.DOTALL)
    for name in ("gpuops.h", "histogram.h", "irq.h", "launch.h", "vm.h", "xid.h")
)


def enumeration(name):
    body = re.search(rf"enum {name} {{(.*?)}}", HEADER, re.DOTALL).group(1)
    return [re.sub(r"\s*=.*", "", each.strip()).lower() for each in body.split(",") if each.strip()]


@pytest.mark.parametrize(
    ("name", "python"),
    [
        ("operation", [operation.name.lower() for operation in Operation]),
        ("kind", [*KINDS, "kinds"]),
        ("counter", [*COUNTERS, "counters"]),
        ("launch_kind", [kind.name.lower() for kind in launches.LaunchKind]),
        ("launch_counter", [*launches.COUNTERS, "launch_counters"]),
        ("vm_call", [call.name.lower() for call in mappings.VmCall]),
        ("vm_counter", [*mappings.COUNTERS, "vm_counters"]),
        ("irq_counter", [*irqs.COUNTERS, "irq_counters"]),
        ("xid_counter", [*xids.COUNTERS, "xid_counters"]),
    ],
)
def test_both_languages_say_the_same(name, python):
    assert enumeration(name) == list(python)


def test_operations_are_numbered_from_one():
    assert "LAUNCH_KERNEL = 1," in HEADER and [int(each) for each in launches.LaunchKind] == [1, 2, 3]
    assert "IOCTL = 1," in HEADER and [int(each) for each in mappings.VmCall] == [1, 2]
    assert "ALLOCATE = 1," in HEADER and [int(each) for each in Operation] == list(range(1, len(Operation) + 1))
    assert f"#define SLOTS {durations.SLOTS} " in HEADER
    assert f"#define NARROW {NARROW:#x}" in HEADER

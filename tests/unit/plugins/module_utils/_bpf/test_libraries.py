# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.libraries import Copy, Found, Mapped, mapped

COPY = Copy("/usr/lib/libcuda.so.1", 0xFE00, 42, "ab" * 20, {"cuMemAlloc_v2": 4096, "cuMemFree_v2": 8192})


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("7f00-7f01 r-xp 00001000 fe:00 42                         /usr/lib/libcuda.so.580.1", Mapped("/usr/lib/libcuda.so.580.1", False)),
        ("7f00-7f01 r-xp 00001000 fe:00 42   /opt/a b/libcuda.so (deleted)", Mapped("/opt/a b/libcuda.so", True)),
        ("7f00-7f01 r-xp 00001000 fe:00 42   /usr/lib/libcudart.so.12", None),
        ("7f00-7f01 r-xp 00001000 fe:00 42   /usr/lib/libcuda.so.d/other", None),
        ("7f00-7f01 rw-p 00000000 00:00 0 ", None),
    ],
)
def test_what_is_mapped(line, found):
    assert mapped([f"{line}\n"]) == ({found} if found else set())


def test_a_file_overwritten_in_place_is_another_copy():
    assert COPY.key == "254-0-42-abababababab"
    assert replace(COPY, build_id="cd" * 20).key != COPY.key


def test_one_copy_under_two_paths_is_one():
    found = Found()
    for path, pids in (("/usr/lib/libcuda.so.1", [3]), ("/proc/5/root/usr/lib/libcuda.so.1", [5])):
        found.add({"copy": {**asdict(COPY), "path": path, "pids": pids}})
    assert [(copy.path, copy.pids) for copy in found.copies] == [("/usr/lib/libcuda.so.1", (3, 5))]

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.entry import EM_X86_64, probe_offset

EM_AARCH64 = 183
THUNK = "81 3d 11 22 33 44 00 ba 1c 32"


@pytest.mark.parametrize(
    ("machine", "entry", "offset"),
    [
        pytest.param(EM_X86_64, f"{THUNK} 74 0a ff 25", 10, id="thunk, short jump"),
        pytest.param(EM_X86_64, f"{THUNK} 0f 84 00 01 00 00", 10, id="thunk, long jump"),
        pytest.param(EM_X86_64, f"{THUNK} 75 0a", 0, id="a comparison before something else"),
        pytest.param(EM_X86_64, "55 48 89 e5 41 54 48 83 ec 08 81 3d 11 22 33 44 00 ba 1c 32 74 0a", 0, id="push first"),
        pytest.param(EM_X86_64, "81 3d", 0, id="cut off"),
        pytest.param(EM_AARCH64, f"{THUNK} 74 0a", 0, id="another machine's"),
    ],
)
def test_the_cheap_place(machine, entry, offset):
    assert probe_offset(machine, bytes.fromhex(entry)) == offset

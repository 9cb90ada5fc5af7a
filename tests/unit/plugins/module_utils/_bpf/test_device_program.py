# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import hashlib

from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.device_program import NAME, instructions

KNOWN = {"gpuops_dev_1": "5f158d19724267b2"}


def test_another_program_has_another_name():
    """By the name a filter of an older version is known, and replaced."""
    assert KNOWN[NAME] == hashlib.sha256(instructions(0, 0)).hexdigest()[:16]


def test_every_jump_leads_forward_to_an_instruction():
    """As the verifier of every kernel takes it, and each map is asked by its own descriptor."""
    text = instructions(7, 9)
    lines = [text[at : at + 8] for at in range(0, len(text), 8)]
    jumps = [(at, int.from_bytes(line[2:4], "little", signed=True)) for at, line in enumerate(lines) if line[0] in (0x15, 0x55)]
    assert len(jumps) == 8 and all(offset >= 0 and at + 1 + offset < len(lines) for at, offset in jumps)
    assert [line[4] for line in lines if line[0] == 0x18] == [7, 7, 7, 9, 9, 9, 9]

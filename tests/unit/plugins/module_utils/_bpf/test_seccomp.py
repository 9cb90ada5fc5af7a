# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Kernels whose filters deny the return of a probed function, by system calls that this machine's kernel treats as they treat that one."""

from __future__ import annotations

import platform

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf import seccomp
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.errors import Unsupported

GETPPID = {"x86_64": 110, "aarch64": 173}[platform.machine()]
NONE = 9999


@pytest.mark.parametrize(
    ("number", "version", "confined", "ends"),
    [
        (GETPPID, (6, 12), False, True),
        (NONE, (6, 8), False, False),
        # What the process itself is told may be its own filter's answer, so that the version decides.
        (NONE, (6, 12), True, True),
        (GETPPID, (6, 8), True, False),
    ],
)
def test_a_call_that_exists_and_can_be_denied_ends_processes(number, version, confined, ends):
    assert seccomp.ends_processes(number, version, confined=confined) == ends


@pytest.mark.parametrize("confined", [False, True])
def test_a_call_that_passes_every_filter_ends_none(monkeypatch, confined):
    """As the fixed kernels answer: with SIGILL, which is caught, and an errno that no filter chose."""
    monkeypatch.setattr(seccomp, "answer", lambda _number, *, filtered: 1)
    assert not seccomp.ends_processes(seccomp.URETPROBE, (6, 12), confined=confined)


def test_the_refusal_says_why(monkeypatch):
    monkeypatch.setattr(seccomp, "ends_processes", lambda *_given, confined: True)
    with pytest.raises(Unsupported, match=r"6\.12\.3 lets seccomp filters deny .* would end processes in containers"):
        seccomp.require_returns("6.12.3")

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf import kernel
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.errors import NotPermitted, ProbeError, Unsupported
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.kernel import check_machine

ADMIN, PERFMON, BPF = 1 << 21, 1 << 38, 1 << 39  # capabilities


def test_what_is_enough():
    check_machine("5.15.0-generic", "x86_64", has_btf=True, effective=ADMIN)
    check_machine("6.18.44", "x86_64", has_btf=True, effective=ADMIN | PERFMON | BPF)


@pytest.mark.parametrize(
    ("release", "machine", "has_btf", "effective", "error", "says"),
    [
        ("5.14.0-503.el9", "x86_64", True, ADMIN, Unsupported, "5.15 and later can"),
        ("6.8.0", "aarch64", True, ADMIN, Unsupported, "x86_64"),
        ("6.8.0", "x86_64", False, ADMIN, Unsupported, "btf"),
        ("6.8.0", "x86_64", True, PERFMON | BPF, NotPermitted, "needs CAP_SYS_ADMIN"),
    ],
)
def test_what_is_in_the_way(release, machine, has_btf, effective, error, says):
    with pytest.raises(error, match=says):
        check_machine(release, machine, has_btf=has_btf, effective=effective)


class Clock:
    """Links end one after the other, each so many seconds after the one before."""

    def __init__(self, monkeypatch, seconds):
        self.now, self._seconds = 0.0, seconds
        monkeypatch.setattr(kernel, "time", self)
        monkeypatch.setattr(kernel, "_exists", lambda link: self.now < link * self._seconds)

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def test_many_links_have_time_to_end(monkeypatch):
    clock = Clock(monkeypatch, 0.5)
    kernel.wait_until_gone(range(1, 100))
    assert clock.now > 49


def test_a_link_that_somebody_else_holds_is_told(monkeypatch):
    Clock(monkeypatch, 60)
    with pytest.raises(ProbeError, match="link 1 is held by somebody else"):
        kernel.wait_until_gone([1])

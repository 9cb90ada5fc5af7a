# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible_collections.gpuops.remediation.plugins.module_utils._mig.drawing import draw
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.layout import Layout
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.tables import model_named
from mig import layout

H200, A30 = model_named("h200-141"), model_named("a30-24")


def test_a_line_for_each_instance():
    assert draw(H200, layout(H200, "3g.71gb@4 2c@0 1c@2", "1g.18gb+me@1", "1g.18gb@0 -")) == (
        "0 1 2 3 4 5 6 7\n"
        "# . . . . . . .  1g.18gb@0     no compute instance\n"
        ". # . . . . . .  1g.18gb+me@1  1c@0\n"
        ". . . . # # # #  3g.71gb@4     2c@0 1c@2\n"
        ". . - - . . . .  free\n"
    )


def test_what_stays_is_the_same_line():
    before, after = (
        set(draw(H200, layout(H200, *names)).splitlines()) for names in (("1g.18gb@0", "2g.35gb@4"), ("3g.71gb@4", "1g.18gb@0"))
    )
    assert "# . . . . . . .  1g.18gb@0     1c@0" in before & after


def test_a_small_gpu_and_one_without_mig():
    assert draw(A30, Layout(True)) == "0 1 2 3\n- - - -  free\n"
    assert draw(A30, Layout(False)) == "MIG off\n"


def test_a_mode_that_waits_for_a_reset():
    assert draw(A30, Layout(False, (), True)) == "MIG off, on after a reset\n"
    assert draw(A30, Layout(True, (), False)) == "0 1 2 3  MIG on, off after a reset\n- - - -  free\n"

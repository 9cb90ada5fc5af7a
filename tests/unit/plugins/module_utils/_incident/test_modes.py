# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.modes import MODES, allows, needed_mode, permitted


@pytest.mark.parametrize(
    "mode, taint, node, release",
    [("observe", False, False, False), ("fence", True, False, True), ("act", True, True, True)],
)
def test_what_a_mode_allows(mode, taint, node, release):
    """S4"""
    assert (allows(mode, "taint"), allows(mode, "node"), allows(mode, "release")) == (taint, node, release)
    assert allows(mode, "forget") == release


def test_the_words_of_a_refusal():
    assert (needed_mode("taint"), needed_mode("node"), needed_mode("release")) == ("fence", "act", "fence")
    assert [permitted(mode) for mode in MODES] == [[], ["taint"], ["taint", "node"]]

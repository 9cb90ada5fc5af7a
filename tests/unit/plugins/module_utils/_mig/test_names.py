# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.names import ProfileName, computed_name, device_name, parse_name


@pytest.mark.parametrize(
    "text, parsed",
    [
        ("3g.71gb", ProfileName("3g.71gb", 3, 3, "")),
        ("1c.3g.71gb", ProfileName("3g.71gb", 3, 1, "")),
        ("3c.3g.71gb", ProfileName("3g.71gb", 3, 3, "")),
        ("1g.18gb+me", ProfileName("1g.18gb+me", 1, 1, "+me")),
        ("1g.24gb+me.all", ProfileName("1g.24gb+me.all", 1, 1, "+me.all")),
        ("1g.24gb-me", ProfileName("1g.24gb-me", 1, 1, "-me")),
        ("3g.0gb", ProfileName("3g.0gb", 3, 3, "")),  # an integrated GPU has no memory of its own
    ],
)
def test_names(text, parsed):
    assert parse_name(text) == parsed
    assert parse_name(device_name(parsed.profile, parsed.compute_slices)) == parsed


@pytest.mark.parametrize("text", ["", "3g", "0g.5gb", "1g.5GB", "1g.5gb ", "1g.5gb+", "4c.3g.20gb", "1g.5gb.me", "{{ x }}", "1g.5gb\n"])
def test_no_names(text):
    assert parse_name(text) is None


@pytest.mark.parametrize(
    "query, slices, memory_mib, total_mib, name",
    [
        (2, 3, 71424, 143771, "3g.71gb"),
        (0, 1, 16384, 143771, "1g.18gb"),
        (7, 1, 16384, 143771, "1g.18gb+me"),
        (9, 1, 33280, 143771, "1g.35gb"),
        (4, 7, 40192, 40960, "7g.40gb"),
        (15, 1, 24192, 97887, "1g.24gb+me.all"),
        (13, 1, 24192, 97887, "1g.24gb-me"),
    ],
)
def test_names_that_the_driver_does_not_tell(query, slices, memory_mib, total_mib, name):
    assert computed_name(query, slices, memory_mib, total_mib) == name

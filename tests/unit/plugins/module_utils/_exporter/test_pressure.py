# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._exporter.pressure import LEVELS, level, oom_score


@pytest.mark.parametrize(
    ("used", "name"),
    [(0, "low"), (599, "low"), (600, "medium"), (799, "medium"), (800, "high"), (949, "high"), (950, "critical"), (1000, "critical")],
)
def test_levels_begin_where_they_are_said_to(used, name):
    assert LEVELS[level(used, 1000)] == name


@pytest.mark.parametrize(("used", "allocations", "score"), [(0, 0, 0), (500, 1000, 50), (500, 1001, 60), (1000, 5000, 110)])
def test_the_score(used, allocations, score):
    assert oom_score(used, 1000, allocations) == score

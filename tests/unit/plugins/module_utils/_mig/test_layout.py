# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.layout import Layout, free_placements, room
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.tables import model_named
from mig import instance, layout

H200, A30 = model_named("h200-141"), model_named("a30-24")


@pytest.mark.parametrize(
    "have, free, stranded, largest, fragmentation",
    [
        pytest.param((), 8, 0, 8, 0, id="empty"),
        pytest.param(("7g.141gb@0",), 0, 0, 0, 0, id="full"),
        pytest.param(("3g.71gb@0",), 4, 0, 4, 0, id="half"),
        pytest.param([f"1g.18gb@{slot}" for slot in range(7)], 1, 1, 0, 1, id="only 1g.35gb reaches slice 7, and it needs 6 too"),
        pytest.param(("1g.18gb@6", "1g.18gb@2"), 6, 1, 2, 2 / 3, id="neither half is whole"),
        pytest.param(("1g.18gb@0", "1g.18gb@1", "1g.18gb@5"), 5, 0, 2, 3 / 5, id="5 slices free and no 3g"),
    ],
)
def test_room(have, free, stranded, largest, fragmentation):
    found = room(H200, layout(H200, *have))
    assert (found.free, found.stranded, found.largest) == (free, stranded, largest)
    assert found.fragmentation == pytest.approx(fragmentation)


def test_what_can_be_created_now():
    found = [f"{name}@{placement.start}:{placement.size}" for name, placement in free_placements(A30, layout(A30, "1g.6gb+me@1"))]
    assert found == ["1g.6gb@0:1", "1g.6gb@2:1", "1g.6gb@3:1", "2g.12gb@2:2", "2g.12gb+me@2:2"]


def test_ids_and_the_order_of_reading_make_no_difference():
    here, there = instance(H200, "1g.18gb@0"), instance(H200, "3g.71gb@4", "2c@0", "1c@2")
    assert Layout(True, (here, there)) == Layout(True, (there, here))
    assert [there.compute_name(one) for one in there.compute] == ["3g.71gb@4/2c@0", "3g.71gb@4/1c@2"]

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.errors import Infeasible
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.tables import model_named
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.wants import counts_of, want_counts
from mig import layout

H200 = model_named("h200-141")


@pytest.mark.parametrize(
    "counts, instances",
    [
        pytest.param({"3g.71gb": 1, "1g.18gb": 0}, [("3g.71gb", None)], id="whole"),
        pytest.param({"1c.3g.71gb": 3}, [("3g.71gb", [1, 1, 1])], id="three parts of one"),
        pytest.param({"1c.3g.71gb": 4}, [("3g.71gb", [1, 1, 1]), ("3g.71gb", [1])], id="a fourth needs another"),
        pytest.param({"1c.3g.71gb": 1, "2c.3g.71gb": 1}, [("3g.71gb", [2, 1])], id="the largest goes first"),
        pytest.param({"2c.3g.71gb": 2}, [("3g.71gb", [2]), ("3g.71gb", [2])], id="3 slices have one place for 2"),
        pytest.param({"3c.3g.71gb": 1}, [("3g.71gb", None)], id="all of it, in other words"),
    ],
)
def test_want_counts(counts, instances):
    wanted = want_counts(H200, counts).instances
    assert [(one.profile, None if one.compute is None else [part.slices for part in one.compute]) for one in wanted] == instances


@pytest.mark.parametrize("counts", [{"1g.5gb": 1}, {"nonsense": 1}, {"1g.18gb": -1}])
def test_refused(counts):
    with pytest.raises(Infeasible):
        want_counts(H200, counts)


def test_counts_of():
    have = layout(H200, "3g.71gb@4 2c@0 1c@2", "1g.18gb@0", "1g.18gb@1", "2g.35gb@2 -")
    assert counts_of(have) == {"2c.3g.71gb": 1, "1c.3g.71gb": 1, "1g.18gb": 2}

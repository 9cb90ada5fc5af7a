# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.keys import fault_key, group_key
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.requests import (
    BadGpu,
    Place,
    UnknownNode,
    from_group,
    from_operator,
    place_of,
)

NOW = datetime(2026, 11, 29, 12, tzinfo=timezone.utc)
GPU = "GPU-5f0c1a52-6a8d-4f0e-9f0e-3c1d4e8a2b11"
PLACE = Place("gpu-1", "uid-1", "host-1")


def test_places():
    entry = {"host": "host-1", "uid": "uid-1", "groups": {"rack": "r1"}}
    assert place_of({"gpu-1": entry}, "gpu-1") == Place("gpu-1", "uid-1", "host-1", True, {"rack": "r1"})
    assert place_of({"gpu-1": None}, "gpu-1") == Place("gpu-1", "gpu-1")


@pytest.mark.parametrize(
    "value, managed", [(True, True), (False, False), ("false", False), ("False", False), ("no", False), ("true", True)]
)
def test_opting_out(value, managed):
    """S4: labels and host variables are text as often as not."""
    assert place_of({"gpu-1": {"managed": value}}, "gpu-1").managed == managed


def test_an_unknown_node():
    with pytest.raises(UnknownNode, match="not in the inventory"):
        place_of({}, "gpu-1")


@pytest.mark.parametrize(
    "gpu, named",
    [
        (None, "-"),
        ("-", "-"),
        (GPU, GPU),
        ("3", "index:3"),
        ("0000:19:00", "pci:0000:19:00.0"),
        ("pci:0000:19:00.0", "pci:0000:19:00.0"),
    ],
)
def test_how_an_operator_names_a_gpu(gpu, named):
    want = from_operator(PLACE, gpu, NOW)
    assert want.gpu == named
    assert want.key == fault_key("uid-1", named)
    assert want.starts_at is None


def test_no_gpu():
    with pytest.raises(BadGpu):
        from_operator(PLACE, "the third one", NOW)


def test_groups():
    want = from_group("controller", "c1", ["a", "b"], "unknown", NOW)
    assert want.key == group_key("controller", "c1")
    assert want.nodes == ("a", "b")

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A layout change on a real control plane: what stands around it, in which order, and what is left where it fails."""

from __future__ import annotations

import pytest
from cluster import audit

HALVES = [{"counts": {"3g.71gb": 2}}]
pytestmark = pytest.mark.timeout(900)


def test_from_whole_gpus_to_halves_and_no_further(fleet):
    """Foretold, done, advertised, usable; and run again it writes nothing."""
    fleet.gpu_nodes("gpu-1", gpus=2, gpuops_mig_layouts=[{"gpus": ["{{ gpuops_first }}"], **HALVES[0]}])
    fleet.host_variables["gpu-1"]["gpuops_first"] = fleet.uuid("gpu-1", 0)
    with fleet.kubelet():
        fleet.device_plugin(1)
        foretold = fleet.play("mig", "--check", "--diff")
        assert foretold.ok, foretold.output
        assert (fleet.changes(), fleet.layout("gpu-1", 0), fleet.advertised("gpu-1")) == ([], [], {"gpu": 2})
        assert "3g.71gb@4" in foretold.output and "mig-change" in foretold.output and "nvidia.com/mig-3g.71gb" in foretold.output

        run = fleet.play("mig")
        assert run.ok, run.output
        assert (fleet.layout("gpu-1", 0), fleet.layout("gpu-1", 1)) == (["3g.71gb@0", "3g.71gb@4"], [])
        assert fleet.changes() == [("patch", "nodes"), ("delete", "pods"), ("patch", "nodes")], "tainted, restarted, untainted"
        assert (fleet.advertised("gpu-1"), fleet.objects.taints("gpu-1")) == ({"gpu": 1, "mig-3g.71gb": 2}, [])

        since = audit.now()
        again = fleet.play("mig")
        assert again.ok and again.changed("gpu-1") == 0, again.output
        assert fleet.writes(since=since) == [], "not even the lock"
        fleet.objects.pod("infer", devices={"nvidia.com/mig-3g.71gb": 1})

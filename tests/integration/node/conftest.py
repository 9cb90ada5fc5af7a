# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gpuops.remediation.plugins.modules import (
    cgroup_state,
    gpu_info,
    mig_instance,
    mig_layout,
    mps_client,
    mps_daemon,
    mps_info,
    node_lock,
)
from gpusim.node import Node
from own_cgroup import cgroup_v1, cgroup_v2, own_cgroup
from run_module import run_module

__all__ = ["cgroup_v1", "cgroup_v2", "own_cgroup"]

MODULES = {
    "cgroup_state": cgroup_state.main,
    "gpu_info": gpu_info.main,
    "mig_instance": mig_instance.main,
    "mig_layout": mig_layout.main,
    "mps_client": mps_client.main,
    "mps_daemon": mps_daemon.main,
    "mps_info": mps_info.main,
    "node_lock": node_lock.main,
}


class SimulatedNode:
    """A simulated node, and our modules run on it with its inventory's variables."""

    def __init__(self, node):
        self.sim = node
        self.options = {name[len("gpuops_") :]: value for name, value in node.host_variables().items()}
        self.state_dir = Path(self.options["state_dir"])
        self.uuids = [gpu["uuid"] for gpu in node.state()["gpus"]]

    def arguments(self, module, **params):
        names = ["state_dir", "proc_root"]
        if module not in ("mps_info", "node_lock"):
            names += ["dev_root", "kmsg_path", "cgroup_root", "nvml_library"]
        if module in ("mig_layout", "mig_instance"):
            names += ["nvidia_smi", "nvidia_modprobe"]
        if module.startswith("mps_"):
            names.append("mps_control")
        return {**{name: self.options[name] for name in names}, **params}

    def run(self, module, **params):
        return run_module(MODULES[module], **self.arguments(module, **params))

    def info(self, **params):
        return self.run("gpu_info", **{"timeout_seconds": 5, **params})

    def cgroup(self, path):
        """As /proc has it."""
        return f"/{self.sim.cgroups.relative_to(self.options['cgroup_root'])}/{path}"


@pytest.fixture
def make_node(tmp_path):
    made = []

    def make(name="gpu-1", **options):
        node = Node(tmp_path / "nodes", name)
        made.append(node)
        node.create(**{"gpus": 3, **options})
        return SimulatedNode(node)

    yield make
    for node in made:
        node.destroy()


@pytest.fixture
def node(make_node):
    return make_node()

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the roles gpu_exporter and responder make of what their tasks have found, and whom the playbook means."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import yaml
from ansible_collections.gpuops.remediation.plugins.module_utils._exporter.page import render
from ansible_collections.gpuops.remediation.plugins.module_utils._exporter.samples import Known, samples
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu.records import Gpu
from expressions import evaluated
from loop import REPOSITORY

EXPORTER_FILES = ["/u/gpuops-node-state.service", "/u/gpuops-node-state.timer", "/u/gpuops-exporter.service", "/program", "/settings"]
RESPONDER_FILES = [
    "/u/gpuops-responder.service",
    "/u/gpuops-reconcile.service",
    "/u/gpuops-reconcile.timer",
    "/c/responder.env",
    "/c/responder.yml",
]


def variables(role):
    return yaml.safe_load((REPOSITORY / f"roles/{role}/vars/main.yml").read_text())


def written(role, results, **given):
    """The paths that a run has written, by the answers of its tasks in their order."""
    made = variables(role)
    for name in ("unit_paths", "files", "written"):
        given[f"{role}_{name}"] = evaluated(made[f"{role}_{name}"], **results, **given)
    return given[f"{role}_files"], given[f"{role}_written"]


@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize(("role", "files"), [("gpu_exporter", EXPORTER_FILES), ("responder", RESPONDER_FILES)])
def test_a_file_that_was_written_is_named_by_its_path(role, files, number):
    answers = [{"changed": one == number} for one in range(5)]
    made = variables(role)
    if role == "gpu_exporter":
        results = {"gpu_exporter_program_file": answers[3], "gpu_exporter_config_file": answers[4]}
        given = {
            "gpu_exporter_units": made["gpu_exporter_units"],
            "gpu_exporter_reads": {"gpuops-exporter.service": ["/program", "/settings"]},
        }
    else:
        results = {"responder_environment_written": answers[3], "responder_settings_written": answers[4]}
        reads = {unit: [evaluated(path, responder_config_dir="/c") for path in paths] for unit, paths in made["responder_reads"].items()}
        given = {"responder_units_here": made["responder_units"], "responder_reads": reads}
    results |= {f"{role}_unit_files": {"results": answers[:3]}, f"{role}_unit_dir": "/u"}
    assert written(role, results, **given) == (files, [files[number]])


def test_a_deployment_names_its_hosts():
    [play] = yaml.safe_load((REPOSITORY / "playbooks/deploy_node.yml").read_text())
    assert evaluated(play["hosts"], gpuops_nodes="gpu_nodes") == "gpu_nodes"
    assert "gpuops_nodes=" in evaluated(play["hosts"]), "no group has such a name"


@pytest.mark.parametrize(
    ("nvml_up", "modes", "nvml_is_down", "persistence_is_off"),
    [(True, (True, True), False, False), (True, (True, False), False, True), (False, (), True, False)],
)
def test_what_the_page_says_of_the_node(nvml_up, modes, nvml_is_down, persistence_is_off):
    made = variables("gpu_exporter")
    gpus = [Gpu(uuid=f"GPU-{number}", pci_bus_id=f"0000:00:0{number}.0", persistence_mode=mode) for number, mode in enumerate(modes)]
    page = render(samples(Known(node="gpu-1", gpus=gpus, nvml_up=nvml_up), 100)).decode()
    assert bool(re.search(made["gpu_exporter_nvml_is_down"], page)) is nvml_is_down
    assert bool(re.search(made["gpu_exporter_persistence_is_off"], page)) is persistence_is_off


@pytest.mark.parametrize(
    ("host", "certfile", "url"),
    [("127.0.0.1", "", "http://127.0.0.1:9410/metrics"), ("::", "/etc/cert.pem", "https://[::]:9410/metrics")],
)
def test_where_the_page_is_asked_for(host, certfile, url):
    made, given = variables("gpu_exporter"), {"gpu_exporter_host": host, "gpu_exporter_certfile": certfile, "gpu_exporter_port": 9410}
    given["gpu_exporter_address"] = evaluated(made["gpu_exporter_address"], **given)
    assert evaluated(made["gpu_exporter_url"], **given) == url


def test_a_python_without_tls_is_refused():
    """Debian's minimal one, for example."""
    check = variables("gpu_exporter")["gpu_exporter_python_check"]
    assert subprocess.run([sys.executable, "-I", "-c", check], check=False).returncode == 0
    without = "import sys; sys.modules['ssl'] = None\n" + check
    refused = subprocess.run([sys.executable, "-I", "-c", without], capture_output=True, text=True, check=False)
    assert refused.returncode == 1 and "ssl" in refused.stderr

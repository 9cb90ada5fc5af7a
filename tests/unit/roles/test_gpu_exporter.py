# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the roles gpu_exporter and responder make of what their tasks have found, and whom the playbook means."""

from __future__ import annotations

import pytest
import yaml
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

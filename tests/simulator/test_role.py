# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The role, through ansible-playbook."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PLAY = """
- hosts: all
  connection: local
  gather_facts: false
  vars:
    simulated_gpu_node_root: {root}
    simulated_gpu_node_gpus: 2
    ansible_python_interpreter: "{{{{ ansible_playbook_python }}}}"
  tasks:
    - ansible.builtin.include_role: {{name: {role}}}
    - ansible.builtin.copy:
        content: "{{{{ dict(gpuops_node_name=gpuops_node_name, gpuops_kmsg_path=gpuops_kmsg_path, gpuops_nvml_library=gpuops_nvml_library) | to_json }}}}"
        dest: {root}/facts.json
        mode: "0644"
      when: gpuops_node_name is defined
"""


def play(where: Path, *options: str) -> dict[str, int]:
    """Runs it; returns what the recap counts."""
    (where / "play.yml").write_text(PLAY.format(root=where / "nodes", role=REPOSITORY / "roles/simulated_gpu_node"), encoding="utf-8")
    command = ["ansible-playbook", "-i", "gpu-1,", "play.yml", *options]
    environment = {**os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_LOCALHOST_WARNING": "0"}
    done = subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", done.stdout.rpartition("PLAY RECAP")[2])}


def test_present_again_and_absent(tmp_path: Path) -> None:
    node = tmp_path / "nodes" / "gpu-1"
    assert play(tmp_path, "--check")["failed"] == 0 and not node.exists()
    try:
        assert play(tmp_path)["changed"] == 2  # the node and this test's own file
        facts = json.loads((tmp_path / "nodes" / "facts.json").read_text(encoding="utf-8"))
        assert facts == {
            "gpuops_node_name": "gpu-1",
            "gpuops_kmsg_path": str(node / "dev/kmsg"),
            "gpuops_nvml_library": str(node / "lib/libnvidia-ml.so.1"),
        }
        assert play(tmp_path)["changed"] == 0
    finally:
        play(tmp_path, "-e", "simulated_gpu_node_state=absent")
    assert not node.exists()


@pytest.mark.parametrize("wrong", ["simulated_gpu_node_model=k80", "simulated_gpu_node_state=here"])
def test_arguments_are_checked(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(AssertionError, match="value of simulated_gpu_node"):
        play(tmp_path, "-e", wrong)

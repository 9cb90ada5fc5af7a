# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The modules through ansible-playbook, with messages and logs that try to become code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from alerts import recorded, rewritten

ROOT = Path(__file__).resolve().parents[3]
CORES = {"present": None, "oldest": ROOT / ".ansible/oldest-core"}
PLAY = """
- hosts: localhost
  connection: local
  gather_facts: false
  module_defaults:
    group/gpuops.remediation.ledger: {ledger_url: "{{ ledger_url }}"}
  tasks:
    - gpuops.remediation.incident: {alert_file: "{{ alert_file }}", inventory: {gpu-1: {host: gpu-1}}}
      register: opened
    - ansible.builtin.debug: {msg: "{{ opened }}"}
    - ansible.builtin.set_fact: {kept: "{{ opened }}"}
    - ansible.builtin.debug: {msg: "{{ kept }} {{ kept.incidents | map(attribute='alert') | list }}"}
    - gpuops.remediation.incident_stage: {state: started, stage: taint, incident_id: "{{ kept.incidents[0].id }}"}
      register: step
    - gpuops.remediation.incident_stage:
        state: finished
        stage: diagnose
        outcome: ok
        incident_id: "{{ kept.incidents[0].id }}"
        data: {evidence: {kernel_log: ["{{ lookup('ansible.builtin.file', kernel_log) }}"]}}
    - gpuops.remediation.incident: {state: closed, incident_id: "{{ kept.incidents[0].id }}"}
    - gpuops.remediation.incident_info:
        incident_id: "{{ kept.incidents[0].id if not ansible_check_mode else omit }}"
      register: info
    - ansible.builtin.set_fact: {told: "{{ info }}", evidence: "{{ (info.incident | default({'stages': {}})).stages | dict2items }}"}
    - ansible.builtin.debug: {msg: "{{ told }} {{ evidence }}"}
    - ansible.builtin.copy: {content: "{{ [kept, step, info] | to_json }}", dest: "{{ result }}"}
      check_mode: false
"""


def canary_in(folder):
    return "{{ lookup('pipe', 'touch %s/executed') }}" % folder


@pytest.fixture(params=CORES)
def play(request, tmp_path):
    core = CORES[request.param]
    if core and not core.exists():
        pytest.skip("make setup installs the oldest ansible-core")
    (tmp_path / "play.yml").write_text(PLAY)

    def run(message, *options):
        (tmp_path / "kmsg").write_text(canary_in(tmp_path))
        (tmp_path / "alert.json").write_text(json.dumps(message))
        values = {
            "ledger_url": f"sqlite:///{tmp_path}/state/ledger.db",
            "alert_file": str(tmp_path / "alert.json"),
            "kernel_log": str(tmp_path / "kmsg"),
            "result": str(tmp_path / "result.json"),
            "ansible_python_interpreter": sys.executable,
        }
        command = [sys.executable, "-m", "ansible", "playbook", "play.yml", "-i", "localhost,", "-e", json.dumps(values), *options]
        environment = {**os.environ, "PYTHONPATH": str(core or ""), "ANSIBLE_COLLECTIONS_PATH": str(ROOT / ".ansible/collections")}
        ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return json.loads((tmp_path / "result.json").read_text())

    return run


def test_a_message_never_becomes_code(play, tmp_path):
    """S1: a canary in every field that takes text, alerts whose node or Xid is one, and a kernel log that is one."""
    canary = canary_in(tmp_path)
    message = rewritten(
        recorded("firing-single"), {"alertname": canary, "severity": canary, canary: canary}, annotations={"summary": canary}
    )
    (good,) = message["alerts"]
    good["generatorURL"] = canary
    for number, (name, part) in enumerate([("node", "labels"), ("gpu", "labels"), ("xid", "annotations")]):
        message["alerts"].append({**good, part: {**good[part], name: canary}, "fingerprint": f"0000000{number}"})
    for name in ("receiver", "externalURL", "groupKey"):
        message[name] = canary
    opened, step, info = play(message, "-vvv")
    assert not (tmp_path / "executed").exists()
    assert "lookup" not in json.dumps(opened)
    assert info["incident"]["stages"]["diagnose"]["data"]["evidence"]["kernel_log"] == [canary]
    assert [one["node"] for one in opened["incidents"]] == ["gpu-1"]
    assert len(opened["held"]) == len(info["held_alerts"]) == 3
    assert (step["seconds"], info["incidents"][0]["state"]) == (60, "held_for_human")


def test_check_mode_writes_nothing(play, tmp_path):
    opened, step, info = play(rewritten(recorded("firing-single"), {}), "--check", "--diff")
    assert [one["id"] for one in opened["incidents"]] == ["predicted"]
    assert (step["skip"], step["mode"], info["incidents"]) == (False, "observe", [])
    assert not (tmp_path / "state").exists()

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from ansible_collections.gpuops.remediation.plugins.modules import gpu_diagnosis
from gpu_evidence import POLICY_FILE, evidence, uuid, xid


def run(**options):
    """The module as Ansible runs it: a process of its own, options on standard input."""
    options = {"policy_file": str(POLICY_FILE), **options}
    done = subprocess.run(
        [sys.executable, gpu_diagnosis.__file__],
        input=json.dumps({"ANSIBLE_MODULE_ARGS": options}),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return json.loads(done.stdout or done.stderr)


@pytest.mark.parametrize("check_mode", [False, True])
def test_a_verdict(check_mode):
    result = run(evidence=evidence(xid(79), xid(48, index=3)), _ansible_check_mode=check_mode)
    assert (result["changed"], result["verdict"]["gpu_uuid"], result["verdict"]["repair"]) == (False, uuid(0), "reboot_node")
    assert [one["gpu_uuid"] for one in result["verdicts"]] == [uuid(0), uuid(3)]


def test_a_replay(tmp_path):
    path = tmp_path / "evidence.json"
    path.write_text(json.dumps({**evidence(xid(79)), "collected_by": "an incident of last week"}))
    assert run(evidence_file=str(path))["verdict"]["action"] == "quarantine_gpu"


def test_a_replay_through_a_changed_policy(tmp_path):
    changed = tmp_path / "mine.yml"
    changed.write_text(POLICY_FILE.read_text().replace('policy_version: "1.0.0"', 'policy_version: "1.0.1"'))
    schema = POLICY_FILE.with_name("xid_policy.schema.json")
    assert run(evidence=evidence(), policy_file=str(changed), policy_schema_file=str(schema))["verdict"]["policy_version"] == "1.0.1"


@pytest.mark.parametrize(
    "options, kind",
    [
        ({"evidence": {"info": {"gpus": "none"}}}, "evidence_invalid"),
        ({"evidence_file": "/nowhere/evidence.json"}, "evidence_invalid"),
        ({"evidence_file": __file__}, "evidence_invalid"),
        ({"evidence": {}, "policy_file": "/nowhere/policy.yml"}, "policy_invalid"),
    ],
)
def test_errors(options, kind):
    result = run(**options)
    assert (result["failed"], result["error_kind"]) == (True, kind)


@pytest.mark.parametrize(
    "options, words",
    [
        ({}, "one of the following is required: evidence, evidence_file"),
        ({"evidence": {}, "evidence_file": "x"}, "parameters are mutually exclusive: evidence|evidence_file"),
        ({"evidence": {"moon": 1}}, "Unsupported parameters"),
    ],
)
def test_options(options, words):
    assert words in run(**options)["msg"]


@pytest.mark.parametrize("library", ["PyYAML", "jsonschema"])
def test_a_library_that_is_missing(library, monkeypatch, tmp_path):
    """The module says which library is missing, and on which interpreter."""
    package = tmp_path / {"PyYAML": "yaml"}.get(library, library)
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('hidden')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert f"Failed to import the required Python library ({library})" in run(evidence={})["msg"]

#!/usr/bin/python
# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_diagnosis
short_description: Turn evidence about a node's GPUs into a verdict with reasons
description:
  - Judges evidence that others collected (M(gpuops.remediation.gpu_info), an alert, the ledger) by a policy file, and says what is broken,
    how far it reaches, what to do and why, in plain words.
  - Reads two files on the controller at most and nothing on the node, so that recorded evidence can be replayed through a changed policy.
version_added: "0.1.0"
author: The gpuops.remediation maintainers (@gpuops)
extends_documentation_fragment:
  - gpuops.remediation.attributes
  - gpuops.remediation.attributes.info_module
requirements:
  - PyYAML
  - jsonschema
options:
  evidence:
    description:
      - The evidence. Of its top-level keys only those below are accepted here.
      - Exactly one of O(evidence) and O(evidence_file) is required.
    type: dict
    suboptions:
      node:
        description: Name, UID and boot id of the node, as the fleet knows it.
        type: dict
      gpu:
        description: The GPU that is meant, by C(uuid), C(pci_bus_id) or C(index). Without it the node as a whole is judged.
        type: dict
      alert:
        description: What is believed of the alert, such as C(xid), C(gpu_uuid), C(pci_bus_id), C(gpu_index), C(starts_at), C(alertname).
        type: dict
      info:
        description: The result of M(gpuops.remediation.gpu_info). Left out where the node did not answer.
        type: dict
      history:
        description: Programs that failed on the node's GPUs before, each with C(gpu_uuid), C(code), C(program) and C(time).
        type: list
        elements: dict
      released_at:
        description:
          - When the GPU was last released, or a dictionary to such times from GPU UUIDs, C(pci:) with an address, and C(-) for the whole node.
          - What is older does not count.
        type: raw
      missing:
        description: Sources that could not be read, each with C(source) and C(why).
        type: list
        elements: dict
  evidence_file:
    description: A JSON file with recorded evidence, for replay.
    type: path
  policy_file:
    description: The policy, a YAML file. The collection ships it as C(data/xid_policy.yml).
    type: path
    required: true
  policy_schema_file:
    description: The JSON schema of the policy. By default C(xid_policy.schema.json) beside O(policy_file).
    type: path
seealso:
  - module: gpuops.remediation.gpu_info
"""

EXAMPLES = r"""
- name: Judge GPU 3 of the node
  gpuops.remediation.gpu_diagnosis:
    evidence:
      node: {name: gpu-1, uid: 0b0d2f6e-8a6c-4d2e-9d7c-3f1f7c9b1a11}
      gpu: {uuid: GPU-5a1c3f0e-0000-0000-0000-000000000003}
      info: "{{ gpu_info_result }}"
    policy_file: "{{ playbook_dir }}/../data/xid_policy.yml"
  delegate_to: localhost
  register: diagnosis

- name: Replay an old incident through a changed policy
  gpuops.remediation.gpu_diagnosis:
    evidence_file: incidents/2026-11-29-gpu-1.json
    policy_file: xid_policy.yml
    policy_schema_file: "{{ playbook_dir }}/../data/xid_policy.schema.json"
  delegate_to: localhost
"""

RETURN = r"""
verdict:
  description: The verdict on the GPU that is meant, or the worst on the node where none is named.
  returned: success
  type: dict
  contains:
    schema_version: {description: Version of this record., type: int}
    policy_version: {description: Version of the policy that decided., type: str}
    node: {description: Name of the node., type: str}
    node_uid: {description: UID of the node., type: str}
    gpu_uuid: {description: UUID of the GPU; null for the node itself., type: str}
    pci_bus_id: {description: PCI address of the GPU., type: str}
    serial: {description: Serial number of the board., type: str}
    gi: {description: GPU instance (MIG) that the fault is confined to., type: int}
    ci: {description: Compute instance (MIG) that the fault is confined to., type: int}
    domain: {description: What is broken., type: str}
    scope: {description: "How far it reaches: process, container, mig_instance, gpu, node or job.", type: str}
    action: {description: "What to do now: none, observe, quarantine_gpu, quarantine_node, hold and others.", type: str}
    repair: {description: "What cures it: none, restart_app, reset_gpu, reboot_node or replace.", type: str}
    certainty: {description: "certain, likely or none.", type: str}
    evict_blind: {description: Whether work may be evicted although the node cannot be asked., type: bool}
    reasons: {description: Sentences for people; the decisive comes first., type: list, elements: str}
    evidence: {description: "Everything that was found, each with source, time, boot_id, gpu_uuid and fact.", type: list, elements: dict}
    missing: {description: "What could not be read, each with source and why.", type: list, elements: dict}
    suspects: {description: "Processes that the lines name, each with pid, start_time, container, pod_uid and name.", type: list, elements: dict}
    xids: {description: Xid codes that took part., type: list, elements: int}
  sample:
    schema_version: 1
    policy_version: "1.0.0"
    node: gpu-1
    gpu_uuid: GPU-5a1c3f0e-0000-0000-0000-000000000003
    domain: memory
    scope: gpu
    action: quarantine_gpu
    repair: replace
    certainty: certain
    reasons:
      - NVML reads that a broken memory row could not be replaced by a spare.
verdicts:
  description: A verdict for each GPU on which anything was found, and for the node itself where it has a fault; the worst comes first.
  returned: success
  type: list
  elements: dict
"""

import json

from ansible_collections.gpuops.remediation.plugins.module_utils._diagnosis.evidence import EvidenceInvalid
from ansible_collections.gpuops.remediation.plugins.module_utils._diagnosis.verdict import diagnose, diagnose_all
from ansible_collections.gpuops.remediation.plugins.module_utils._module import run_module
from ansible_collections.gpuops.remediation.plugins.module_utils._xid.policy import load_policy


def read_file(path: str) -> dict:
    try:
        with open(path, encoding="utf-8") as stream:
            return json.load(stream)
    except (OSError, ValueError) as error:
        raise EvidenceInvalid(f"cannot read the evidence {path}: {error}", path=path) from error


PARTS = {
    **{name: {"type": "dict"} for name in ("node", "gpu", "alert", "info")},
    **{name: {"type": "list", "elements": "dict"} for name in ("history", "missing")},
    "released_at": {"type": "raw"},
}
SPEC = {
    "argument_spec": {
        "evidence": {"type": "dict", "options": PARTS},
        "evidence_file": {"type": "path"},
        "policy_file": {"type": "path", "required": True},
        "policy_schema_file": {"type": "path"},
    },
    "mutually_exclusive": [("evidence", "evidence_file")],
    "required_one_of": [("evidence", "evidence_file")],
}


def run(params, check_mode):
    policy = load_policy(params["policy_file"], params["policy_schema_file"])
    evidence = params["evidence"] if params["evidence_file"] is None else read_file(params["evidence_file"])
    return {"changed": False, "verdict": diagnose(evidence, policy), "verdicts": diagnose_all(evidence, policy)}


def main():
    run_module(SPEC, run)


if __name__ == "__main__":
    main()

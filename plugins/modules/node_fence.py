#!/usr/bin/python
# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: node_fence
short_description: Taint GPUs or their nodes early, on what the fleet says alone
description:
  - For each incident that nobody has looked at yet, and whose alert the policy calls certain without the node, the GPU is tainted alone, as by
    M(gpuops.remediation.device_taint), where that is possible, and else the node. Nothing that runs there is touched; the diagnosis confirms the
    fence or lifts it.
  - Where O(prometheus_url) is given, Prometheus is asked once for all of them, and only what the node's own exporter says too is fenced. What
    Prometheus does not confirm, and all of it while Prometheus does not answer, is left to the diagnosis.
  - What was weighed is stored with the incident, with its stage C(detect). The event source does the same, under the same rules, before any
    playbook runs; its incidents are skipped here.
version_added: "0.1.0"
author: The gpuops.remediation maintainers (@gpuops)
extends_documentation_fragment:
  - gpuops.remediation.attributes
  - gpuops.remediation.kubernetes
  - gpuops.remediation.ledger
  - gpuops.remediation.prometheus
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
    details:
      - Shows the rules of each GPU, or taints and incidents of its node.
  idempotent:
    support: full
requirements:
  - PyYAML
  - jsonschema
options:
  incidents:
    description: The incidents, as M(gpuops.remediation.incident) returns them.
    type: list
    elements: dict
    required: true
  policy_file:
    description: The policy, a YAML file. The collection ships it as C(data/xid_policy.yml).
    type: path
    required: true
  deadline_seconds:
    description: How long all of it may take, including everything that is tried again.
    type: float
    default: 30.0
seealso:
  - module: gpuops.remediation.device_taint
  - module: gpuops.remediation.node_taint
"""

EXAMPLES = r"""
- name: Fence what is certainly lost
  gpuops.remediation.node_fence:
    incidents: "{{ opened.incidents }}"
    policy_file: xid_policy.yml
    prometheus_url: https://prometheus.example.org
"""

RETURN = r"""
weighed:
  description: One entry for each incident that the policy calls certain on its alert alone.
  returned: success
  type: list
  elements: dict
  contains:
    incident_id:
      description: The incident.
      type: str
    node:
      description: Its node.
      type: str
    fenced:
      description: Whether the GPU or its node is fenced for it.
      type: bool
    reason:
      description: Why, or why not, in words for people.
      type: str
    witness:
      description: What Prometheus says of the alert; null where none is configured.
      type: str
      choices: [confirmed, contradicted, missing]
    error_kind:
      description: Why the taint failed, as M(gpuops.remediation.node_taint) has it, or null.
      type: str
"""

from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.argspec import PROMETHEUS_SPEC, prometheus_of
from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.fence import fence
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.access import api_of
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.argspec import CONNECTION_SPEC
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.deadline import Deadline
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.argspec import LEDGER_SPEC, open_ledger
from ansible_collections.gpuops.remediation.plugins.module_utils._module import run_module
from ansible_collections.gpuops.remediation.plugins.module_utils._xid.policy import load_policy

SPEC = {
    "argument_spec": {
        **CONNECTION_SPEC,
        **LEDGER_SPEC,
        **PROMETHEUS_SPEC,
        "incidents": {"type": "list", "elements": "dict", "required": True},
        "policy_file": {"type": "path", "required": True},
        "deadline_seconds": {"type": "float", "default": 30.0},
    },
}


def run(params, check_mode):
    weighed = fence(
        open_ledger(params["ledger_url"], check_mode),
        api_of(params),
        load_policy(params["policy_file"]),
        params["incidents"],
        prometheus_of(params),
        Deadline(params["deadline_seconds"]),
        check_mode=check_mode,
    )
    diffs = [{**one.pop("diff"), "before_header": one["node"], "after_header": one["node"]} for one in weighed]
    return {"changed": any(one["changed"] for one in weighed), "weighed": weighed, "diff": [diff for diff in diffs if "before" in diff]}


def main():
    run_module(SPEC, run)


if __name__ == "__main__":
    main()

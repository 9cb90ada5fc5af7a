#!/usr/bin/python
# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: release_check
short_description: Say whether a quarantined GPU or node may go back into service
description:
  - Compares what was read now with what was kept when the incident was diagnosed. A release needs every check, and each can refuse it alone.
  - NVML answers for all GPUs; no recovery action; no pending or failed row remap; no new uncorrectable ECC error; no fatal Xid since the
    repair; no holder; and, where the verdict asks for a reset, a reboot or a replacement, proof that it took place.
  - Where the incident is about the node, its NVLinks or its fabric, the kernel log is judged as a whole, with the lines of NVSwitches (SXid).
  - With O(prometheus_url), the node's exporter has to be up and have read its kernel log all the while, and no alert about this GPU, or node, may
    have fired for O(quiet_seconds). Alerts about a node without naming a GPU count where the incident is about the node, or began with an alert of that name.
  - A source that is configured and cannot be read is a refusal. One that is not configured is named.
version_added: "0.1.0"
author: The gpuops.remediation maintainers (@gpuops)
extends_documentation_fragment:
  - gpuops.remediation.attributes
  - gpuops.remediation.attributes.info_module
  - gpuops.remediation.ledger
  - gpuops.remediation.prometheus
options:
  incident_id:
    description: The incident to release.
    type: str
    required: true
  info:
    description: What M(gpuops.remediation.gpu_info) returned now.
    type: dict
    required: true
  policy_file:
    description: The policy that says which Xids and SXids are fatal.
    type: path
    required: true
  allowed_holders:
    description: As in M(gpuops.remediation.cgroup_state).
    type: list
    elements: str
    default: []
  quiet_seconds:
    description: For how long O(prometheus_url) must have seen no alert.
    type: int
    default: 600
  alert_labels:
    description: As in M(gpuops.remediation.incident).
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: May it go back?
  gpuops.remediation.release_check:
    incident_id: 20260301-101500-1a2b3c4d
    info: "{{ reading }}"
    policy_file: /etc/gpuops/xid_policy.yml
  delegate_to: localhost
"""

RETURN = r"""
checks:
  description: Each check with C(name), C(ok) (null where its source is not configured) and C(why), what was read.
  returned: always
  type: list
  elements: dict
  sample:
    - {name: row_remap, ok: true, why: "none pending, none failed"}
error_kind:
  description: V(not_releasable) when a check failed.
  returned: failure
  type: str
"""

from dataclasses import asdict

from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.argspec import PROMETHEUS_SPEC, prometheus_of
from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.quiet import faults, subject_of
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.alerts import label_map
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.release import Case, checks, require
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.times import utc_now
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.argspec import LEDGER_SPEC, open_ledger
from ansible_collections.gpuops.remediation.plugins.module_utils._module import run_module
from ansible_collections.gpuops.remediation.plugins.module_utils._xid.policy import load_policy

SPEC = {
    "argument_spec": {
        **LEDGER_SPEC,
        **PROMETHEUS_SPEC,
        "incident_id": {"required": True},
        "info": {"type": "dict", "required": True},
        "policy_file": {"type": "path", "required": True},
        "allowed_holders": {"type": "list", "elements": "str", "default": []},
        "quiet_seconds": {"type": "int", "default": 600},
        "alert_labels": {"type": "dict", "default": {}},
    },
}


def run(params, check_mode):
    incident = open_ledger(params["ledger_url"], check_mode=True).incident(params["incident_id"])
    case = Case.of(
        incident,
        params["info"],
        is_fatal=load_policy(params["policy_file"]).keeps_from_service,
        allowed_holders=params["allowed_holders"],
    )
    prometheus, fleet = prometheus_of(params), None
    if prometheus:
        fleet = faults(prometheus, subject_of(case, incident), params["quiet_seconds"], utc_now(), label_map(params["alert_labels"]))
    results = checks(case, fleet)
    require(results)
    return {"changed": False, "checks": [asdict(check) for check in results]}


def main():
    run_module(SPEC, run)


if __name__ == "__main__":
    main()

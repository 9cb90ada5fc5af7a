#!/usr/bin/python

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: incident_stage
short_description: Begin and end a stage of an incident
description:
  - Beginning a stage says whether it is to run now, how long it may take and what the mode lets it write.
  - A stage that has finished is skipped; one that was begun and not finished begins again, because everything that stages do can be
    done twice. Where no time is left the stage is stored as timed out and skipped; the taint always gets its floor.
  - Ending the diagnosis with a verdict gives the incident its true GPU and domain. If another open incident turns out to be about the same
    fault, this one's stored verdict asks for nothing and names the other, and the incident ends in C(no_action) unless a fence of it still
    stands. Go by C(incident.verdict) afterwards.
version_added: "0.1.0"
author: The gpuops.remediation maintainers (@gpuops)
extends_documentation_fragment:
  - gpuops.remediation.attributes
  - gpuops.remediation.ledger
  - gpuops.remediation.ledger.lock
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: partial
    details:
      - Beginning a stage again counts as another attempt.
options:
  state:
    description: Whether the stage begins or ends.
    type: str
    required: true
    choices: [started, finished]
  incident_id:
    description: The incident; V(predicted) is accepted in check mode.
    type: str
    required: true
  stage:
    description: The stage.
    type: str
    required: true
    choices: [detect, diagnose, isolate, taint, evict, verify, repair, validate, release]
  limits:
    description: As in M(gpuops.remediation.incident).
    type: dict
    default: {}
  outcome:
    description: How it ended; V(due) means that the mode forbids what was to be done.
    type: str
    choices: [ok, failed, due, skipped, timed_out]
  error_kind:
    description: The C(error_kind) of the module that failed.
    type: str
  reason:
    description: Why it ended so, in words for people.
    type: str
  data:
    description:
      - What is to be kept of the stage.
      - For the diagnosis C(verdict), the verdict, and C(evidence), the raw evidence with C(info), what
        M(gpuops.remediation.gpu_info) returned.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Begin
  gpuops.remediation.incident_stage:
    state: started
    incident_id: 20260301-101500-1a2b3c4d
    stage: evict
  register: step

- name: End
  gpuops.remediation.incident_stage:
    state: finished
    incident_id: 20260301-101500-1a2b3c4d
    stage: evict
    outcome: failed
    error_kind: evict_incomplete
    reason: 1 pod is left
    data: {left: [{namespace: ml, name: train-0}]}
"""

RETURN = r"""
skip:
  description: The stage is not to run.
  returned: success and O(state=started)
  type: bool
seconds:
  description: How long the stage may take.
  returned: success and O(state=started)
  type: int
overdue:
  description: It is skipped because no time is left.
  returned: success and O(state=started)
  type: bool
mode:
  description: The mode.
  returned: success and O(state=started)
  type: str
permitted:
  description: What the mode lets be written, of C(taint) and C(node).
  returned: success and O(state=started)
  type: list
  elements: str
deadline_at:
  description: When the incident's time is over.
  returned: success and O(state=started)
  type: str
outcome:
  description: How the stage ended earlier.
  returned: success and O(state=started)
  type: str
data:
  description: What was kept of the stage earlier.
  returned: success and O(state=started)
  type: dict
history:
  description: Programs that failed on the node's GPUs in the last 24 hours.
  returned: success, O(state=started) and O(stage=diagnose)
  type: list
  elements: dict
releases:
  description:
    - When each GPU of the node was released last, or a human cancelled an incident of it; what is older is no evidence.
      By UUID and by C(pci:ADDRESS); C(-) stands for the whole node.
  returned: success, O(state=started) and O(stage=diagnose) or O(stage=taint)
  type: dict
incident:
  description: The incident, as M(gpuops.remediation.incident) returns it.
  returned: success
  type: dict
error_kind:
  description: V(lock_lost) when somebody else has the lock by now.
  returned: failure
  type: str
"""

from ansible_collections.gpuops.remediation.plugins.module_utils._incident.budget import Limits
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.stages import OUTCOMES, STAGES
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.argspec import (
    LEDGER_LOCK_NEEDS,
    LEDGER_LOCK_SPEC,
    LEDGER_SPEC,
    open_ledger_under_lock,
)
from ansible_collections.gpuops.remediation.plugins.module_utils._module import run_module

SPEC = {
    "argument_spec": {
        **LEDGER_SPEC,
        **LEDGER_LOCK_SPEC,
        "state": {"required": True, "choices": ["started", "finished"]},
        "incident_id": {"required": True},
        "stage": {"required": True, "choices": list(STAGES)},
        "limits": {"type": "dict", "default": {}},
        "outcome": {"choices": list(OUTCOMES)},
        "error_kind": {},
        "reason": {},
        "data": {"type": "dict", "default": {}},
    },
    "required_if": [("state", "finished", ["outcome"])],
    "required_by": LEDGER_LOCK_NEEDS,
}


def run(params, check_mode):
    stage = params["stage"]
    ledger = open_ledger_under_lock(params, check_mode)
    before = ledger.incident(params["incident_id"])["stages"].get(stage, {})
    if params["state"] == "started":
        result = ledger.start_stage(params["incident_id"], stage, Limits.of(params["limits"]))
        result["changed"] = not result["skip"] or result["overdue"]
    else:
        end = [params[name] or None for name in ("reason", "error_kind")]
        changed, incident = ledger.finish_stage(params["incident_id"], stage, params["outcome"], params["data"], *end)
        result = {"changed": changed, "incident": incident}
    after = result["incident"]["stages"].get(stage, {})
    shown = [{name: side.get(name) for name in ("state", "outcome", "reason")} for side in (before, after)]
    return {**result, "diff": {"before": shown[0], "after": shown[1]}}


def main():
    run_module(SPEC, run)


if __name__ == "__main__":
    main()

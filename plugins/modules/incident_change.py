#!/usr/bin/python

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: incident_change
short_description: Record a change ahead of making it
description:
  - For changes that are made on nodes, where the ledger cannot be reached. The change is recorded as V(intended), then made, then recorded as
    V(applied); undoing it begins with V(disowned) and ends with V(reverted).
  - A change of one target that several incidents want is one change with several owners. It is undone with the last of them, to the value
    before the first.
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
    support: full
options:
  state:
    description: What is known of the change.
    type: str
    required: true
    choices:
      intended: It is about to be made.
      applied: It was made and read back.
      disowned: The incident no longer wants it. Where RV(change.owners) is empty, C(before) has to be put back.
      reverted: C(before) is back in place, read again.
  incident_id:
    description: The incident; V(predicted) is accepted in check mode.
    type: str
    required: true
  target:
    description: What is changed, for example V(node/gpu-1/cgroup/system.slice/train.service).
    type: str
    required: true
  before:
    description: With O(state=intended), the value before. It counts only where the change is not recorded yet.
    type: raw
  wanted:
    description: With O(state=intended), the value to be.
    type: raw
  after:
    description: With O(state=applied), the value read back.
    type: raw
"""

EXAMPLES = r"""
- name: Write ahead that a cgroup will be frozen
  gpuops.remediation.incident_change:
    state: intended
    incident_id: 20260301-101500-1a2b3c4d
    target: node/gpu-1/cgroup/system.slice/train.service
    before: thawed
    wanted: frozen
"""

RETURN = r"""
change:
  description: The change; empty where none is open any more.
  returned: success
  type: dict
  contains:
    before:
      description: The value before the first incident touched it.
      type: raw
    status:
      description: V(intended), V(applied) or V(reverted).
      type: str
    owners:
      description: The incidents that want it now.
      type: list
      elements: str
error_kind:
  description: V(lock_lost) when somebody else has the lock by now.
  returned: failure
  type: str
"""

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
        "state": {"required": True, "choices": ["intended", "applied", "disowned", "reverted"]},
        "incident_id": {"required": True},
        "target": {"required": True},
        "before": {"type": "raw"},
        "wanted": {"type": "raw"},
        "after": {"type": "raw"},
    },
    "required_by": LEDGER_LOCK_NEEDS,
}


def run(params, check_mode):
    incident_id, target = params["incident_id"], params["target"]
    ledger = open_ledger_under_lock(params, check_mode)
    before = after = ledger.open_change(target)
    if params["state"] == "intended":
        after = ledger.intend(incident_id, target, params["before"], params["wanted"])
    elif before and params["state"] == "applied":
        after = ledger.applied(before.id, params["after"])
    elif before and params["state"] == "disowned":
        after = ledger.disown(incident_id, target)
    elif before:
        after = ledger.reverted(before.id)
    shown = [change.record() if change else {} for change in (before, after)]
    return {"changed": before != after, "change": shown[1], "diff": {"before": shown[0], "after": shown[1]}}


def main():
    run_module(SPEC, run)


if __name__ == "__main__":
    main()

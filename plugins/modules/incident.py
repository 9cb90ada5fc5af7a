#!/usr/bin/python

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: incident
short_description: Open, close and release incidents
description:
  - An incident is one fault of a GPU, of a node or of a group of nodes. There is at most one open incident for a fault;
    asking again finds it.
  - Alerts are given by reference only, and this module reads the text itself. What comes back of an alert are values that passed a strict
    pattern; the message itself stays in the ledger's inbox.
  - Each alert of a message is judged alone. One without a usable node or GPU is held, and people are told once.
  - An incident that has ended and still stands (contained, overdue or held) comes back with RV(incidents[].resume=verify).
    One that was held before anybody had looked at its GPU is diagnosed from the start, in a new round with a deadline of its own, when an
    operator or another episode of an alert asks again.
  - Who names no GPU for certain (the whole node, or an index) means what is sick there now. Incidents that have ended do not answer that; a new
    one is opened, and they come back beside it.
  - Where O(alertmanager_urls) is given, nothing is done for an alert that a human has silenced. It is ignored, and an incident of
    O(incident_ids) that has not begun to act ends. What still fires when the silence is over is taken up again.
version_added: "0.1.0"
author: The gpuops.remediation maintainers (@gpuops)
extends_documentation_fragment:
  - gpuops.remediation.attributes
  - gpuops.remediation.ledger
  - gpuops.remediation.ledger.lock
  - gpuops.remediation.alertmanager
  - gpuops.remediation.correlation
attributes:
  check_mode:
    support: full
    details:
      - An incident that would be opened is returned with the id V(predicted), which the collection's other modules accept in check mode.
  diff_mode:
    support: full
  idempotent:
    support: full
options:
  state:
    description: What to do.
    type: str
    default: opened
    choices:
      opened: Open an incident for each fault, or find the open one.
      begun: Let those of O(incident_ids), all of one node, run that wait, as soon as O(max_running) leaves room for the node.
      closed: End the incident, in the state that its stages amount to or in O(end_state).
      released: Say that everything was undone and the GPU is back in service. Refused while a change of the incident stands.
      absorbed: Take over the ledgers in O(ledger_dir), kept while this one was away, and remove their files.
      listed: Keep O(inventory), which was read just now, for the event source, which has none.
      reconciling: Note that a reconcile is at work, for monitoring. Changes nothing else.
      reconciled: Note that a reconcile has got to its end, so that monitoring sees when none does any more. Changes nothing else.
      pruned: Forget what is older than O(older_than_days). Open incidents, unsent notifications and the last word on each GPU (a release, or a human's) stay.
  alert_file:
    description: A file with a message of Alertmanager's webhook (version 4). Its alerts count as received now.
    type: path
  inbox_ids:
    description: Messages that the event source has put into the ledger's inbox. Those that are decided already are left alone.
    type: list
    elements: int
  incident_ids:
    description: Incidents to take up again by their ids, as reconcile does; with O(state=begun), those that wait.
    type: list
    elements: str
  node:
    description:
      - The node, as an operator names it.
      - With O(lock_token), the node whose lock that is of.
    type: str
  gpu:
    description:
      - With O(node), its GPU by UUID, by PCI address or by index.
      - Without it the incident is about the whole node until the diagnosis says which GPU it is.
    type: str
  group:
    description: Nodes that failed together, for one incident in place of many.
    type: dict
    suboptions:
      kind:
        description: What joins them, for example V(controller), V(job), V(nvlink_domain) or V(rack).
        type: str
        required: true
      name:
        description: Which one.
        type: str
        required: true
      nodes:
        description: The nodes.
        type: list
        elements: str
        required: true
      domain:
        description: The fault's domain.
        type: str
        default: unknown
  inventory:
    description:
      - The nodes that may have incidents, by name. Each is a dictionary with C(host) (the inventory's name for it), C(uid) (Kubernetes'
        UID; the node's name where there is none), C(managed) (V(false) opts the node out) and C(groups) (for the breaker).
      - Alerts of other nodes are held.
    type: dict
    default: {}
  alert_labels:
    description:
      - Which labels hold what, in the order in which they are tried. Each of C(node), C(gpu_uuid), C(pci_bus_id), C(gpu_index), C(gi), C(xid),
        C(job), C(nvlink_domain) and C(rack) is a list of names; an Xid is looked for among the annotations too.
      - What is not given stays as it is by default, which suits our exporter and dcgm-exporter.
    type: dict
    default: {}
  policy_file:
    description:
      - The policy, a YAML file, by which alerts of many nodes are one fault; see O(correlation). The collection ships it as C(data/xid_policy.yml).
      - Without it each alert is a fault of its own node.
    type: path
  limits:
    description:
      - Seconds that differ from the defaults. Any of C(total_seconds) (720), C(on_time_seconds) (90), C(after_receipt_seconds) (630),
        C(taint_floor_seconds) (30) and C(STAGE_seconds) for a stage.
    type: dict
    default: {}
  max_running:
    description:
      - How many nodes may be worked on at once, by whatever run. Incidents of more nodes wait, fenced; V(0) lets all run.
      - A node is worked on while an incident of it is running and has time left, or somebody holds its lock.
      - Who has waited for longest goes first, and a new incident goes behind those that wait; a node that nobody has asked for within a minute
        keeps no place free.
    type: int
    default: 0
  wait_seconds:
    description: With O(state=begun), how long to wait for room. Who then gives up leaves its place to those behind, until it is asked for again.
    type: float
    default: 0
  anew:
    description:
      - Diagnose an open incident from the start again, with a new deadline.
      - A quarantine that stands is kept, whatever the new verdict says; only the release lifts it.
    type: bool
    default: false
  only_due:
    description: Of O(incident_ids), only those that are still due again, so that of two reconciles one begins the new round.
    type: bool
    default: false
  break_glass:
    description:
      - With O(node), an operator's word to go on while the ledger is away. The incident is then opened in a ledger of the node's own, in mode
        V(act) and with a breaker slot, and RV(glass) says where; people are told. It stays there until O(state=absorbed).
      - Where the ledger can be written it is used, and its mode holds. In check mode nothing is broken.
    type: dict
    suboptions:
      who:
        description: Who breaks it.
        type: str
        required: true
      why:
        description: Why.
        type: str
        required: true
      ledger_dir:
        description: The folder of this controller for such ledgers, as an absolute path. It is made for nobody else to read.
        type: path
        required: true
  incident_id:
    description: The incident to close or to release.
    type: str
  end_state:
    description: The state to end in, where the stages do not say it.
    type: str
    choices: [no_action, fence_lifted, contained, quarantined_overdue, held_for_human, cancelled_by_human]
  reason:
    description: Why, in words for people.
    type: str
  overdue_because:
    description: With O(state=closed), end the incident only if it runs and its time is over; and why nobody worked on it, in words for people.
    type: str
  checks:
    description: With O(state=released), what was read before the release.
    type: dict
    default: {}
  ledger_dir:
    description: With O(state=absorbed), the folder.
    type: path
  older_than_days:
    description: With O(state=pruned), the age.
    type: int
    default: 90
"""

EXAMPLES = r"""
- name: Open an incident for each fault that an alert tells of
  gpuops.remediation.incident:
    alert_file: /run/alert.json
    inventory:
      gpu-1: {host: gpu-1.example.org, uid: 0f6c1a52-6a8d-4f0e-9f0e-3c1d4e8a2b11}
  register: opened

- name: Open an incident for a GPU that somebody has doubts about
  gpuops.remediation.incident:
    node: gpu-1
    gpu: "0000:19:00.0"
    inventory:
      gpu-1: {host: gpu-1.example.org}

- name: End it in the state that its stages amount to
  gpuops.remediation.incident:
    state: closed
    incident_id: "{{ opened.incidents[0].id }}"

- name: Take over what was done while the ledger was away
  gpuops.remediation.incident:
    state: absorbed
    ledger_dir: /var/lib/gpuops/break-glass
"""

RETURN = r"""
incidents:
  description: The incidents, with O(state=opened).
  returned: success and O(state=opened)
  type: list
  elements: dict
  contains:
    id:
      description: The incident's id; V(predicted) in check mode for one that would be opened.
      type: str
    state:
      description: Its state.
      type: str
    found:
      description: It existed before.
      type: bool
    resume:
      description: V(verify) where it has ended and only looking is left to do.
      type: str
    node:
      description: The node.
      type: str
    gpu:
      description: The GPU by UUID, C(pci:ADDRESS), C(index:N), or V(-) for the whole node.
      type: str
    deadline_at:
      description: When its time is over.
      type: str
    stages:
      description: What its stages did so far, by name.
      type: dict
held:
  description: Alerts that are kept for people, each with its C(position) in the message and the C(reason).
  returned: success and O(state=opened)
  type: list
  elements: dict
ignored:
  description:
    - Alerts that need nothing, each with its C(position) in the message, or the C(incident_id), and the C(reason).
    - A message that another run has decided already has its C(inbox_id) and the C(reason).
  returned: success and O(state=opened)
  type: list
  elements: dict
truncated_alerts:
  description: How many alerts Alertmanager left out of the message. More than zero asks for a look at Alertmanager.
  returned: success and O(state=opened)
  type: int
missing:
  description:
    - Sources that are configured and gave no answer, each with C(source) and C(why).
    - What humans have silenced is then not known, and what was left for a silence stays left.
  returned: success and O(state=opened)
  type: list
  elements: dict
begun:
  description: Whether the node's incidents may go on; V(false) leaves them waiting.
  returned: success and O(state=begun)
  type: bool
incident_ids:
  description: Those of O(incident_ids) that run from now on. Another run has begun, or ended, those that are not among them and wait no more.
  returned: success and O(state=begun)
  type: list
  elements: str
incident:
  description: The incident, as in RV(incidents).
  returned: success and O(state=closed) or O(state=released)
  type: dict
error_kind:
  description: V(lock_lost) when somebody else has the lock by now.
  returned: failure
  type: str
glass:
  description: The glass is broken.
  returned: with O(break_glass), where the ledger is away
  type: dict
  contains:
    ledger_url:
      description: The ledger by which everything else about this node has to go now.
      type: str
    reason:
      description: What is the matter with the ledger.
      type: str
absorbed:
  description: The ids of the incidents that were taken over.
  returned: success and O(state=absorbed)
  type: list
  elements: str
left:
  description: The ledgers that could not be taken over now, each with its C(file) and C(why).
  returned: success and O(state=absorbed)
  type: list
  elements: dict
pruned:
  description: How many rows were forgotten.
  returned: success and O(state=pruned)
  type: int
"""

from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.argspec import ALERTMANAGER_SPEC
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.argspec import (
    CORRELATION_SPEC,
    LEDGER_LOCK_NEEDS,
    LEDGER_LOCK_SPEC,
    LEDGER_SPEC,
    open_ledger_under_lock,
)
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.glass import absorbed, opened
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.opening import begun, ended
from ansible_collections.gpuops.remediation.plugins.module_utils._module import run_module

GROUP_SPEC = {
    "kind": {"required": True},
    "name": {"required": True},
    "nodes": {"type": "list", "elements": "str", "required": True},
    "domain": {"default": "unknown"},
}
GLASS_SPEC = {"who": {"required": True}, "why": {"required": True}, "ledger_dir": {"type": "path", "required": True}}
END_STATES = ["no_action", "fence_lifted", "contained", "quarantined_overdue", "held_for_human", "cancelled_by_human"]
SUBJECTS = ("alert_file", "inbox_ids", "incident_ids", "node", "group")

SPEC = {
    "argument_spec": {
        **LEDGER_SPEC,
        **LEDGER_LOCK_SPEC,
        **ALERTMANAGER_SPEC,
        **CORRELATION_SPEC,
        "state": {
            "default": "opened",
            "choices": ["opened", "begun", "closed", "released", "absorbed", "listed", "reconciling", "reconciled", "pruned"],
        },
        "alert_file": {"type": "path"},
        "inbox_ids": {"type": "list", "elements": "int"},
        "incident_ids": {"type": "list", "elements": "str"},
        "gpu": {},
        "group": {"type": "dict", "options": GROUP_SPEC},
        "inventory": {"type": "dict", "default": {}},
        "alert_labels": {"type": "dict", "default": {}},
        "policy_file": {"type": "path"},
        "limits": {"type": "dict", "default": {}},
        "max_running": {"type": "int", "default": 0},
        "wait_seconds": {"type": "float", "default": 0},
        "anew": {"type": "bool", "default": False},
        "only_due": {"type": "bool", "default": False},
        "break_glass": {"type": "dict", "options": GLASS_SPEC},
        "incident_id": {},
        "end_state": {"choices": END_STATES},
        "reason": {},
        "overdue_because": {},
        "checks": {"type": "dict", "default": {}},
        "ledger_dir": {"type": "path"},
        "older_than_days": {"type": "int", "default": 90},
    },
    "mutually_exclusive": [SUBJECTS],
    "required_if": [
        ("state", "opened", SUBJECTS, True),
        ("state", "begun", ["incident_ids"]),
        ("state", "closed", ["incident_id"]),
        ("state", "released", ["incident_id"]),
        ("state", "absorbed", ["ledger_dir"]),
    ],
    "required_by": {"gpu": ["node"], "break_glass": ["node"], **LEDGER_LOCK_NEEDS},
}


def run(params, check_mode):
    if params["state"] == "opened":
        return opened(params, check_mode)
    ledger = open_ledger_under_lock(params, check_mode)
    if params["state"] == "absorbed":
        return absorbed(ledger, params["ledger_dir"])
    if params["state"] == "begun":
        return begun(ledger, params)
    if params["state"] in ("reconciling", "reconciled"):
        ledger.reconciling() if params["state"] == "reconciling" else ledger.reconciled()
        return {"changed": False}
    if params["state"] == "listed":
        return {"changed": ledger.keep_nodes(params["inventory"])}
    if params["state"] == "pruned":
        pruned = ledger.prune(params["older_than_days"])
        return {"changed": pruned > 0, "pruned": pruned}
    return ended(ledger, params)


def main():
    run_module(SPEC, run)


if __name__ == "__main__":
    main()

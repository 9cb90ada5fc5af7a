#!/usr/bin/python

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: incident_info
short_description: Read incidents, and what is left to do
description:
  - Lists the open incidents as people want to see them, with the next command to type, and what reconcile has to take up.
  - With O(incident_id), also tells the whole story of one incident.
version_added: "0.1.0"
author: The gpuops.remediation maintainers (@gpuops)
extends_documentation_fragment:
  - gpuops.remediation.attributes
  - gpuops.remediation.attributes.info_module
  - gpuops.remediation.ledger
options:
  incident_id:
    description: The incident to tell of.
    type: str
  node:
    description: Only this node's incidents.
    type: str
  closed:
    description: Also those that are closed, newest first.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: See what is going on
  gpuops.remediation.incident_info:
  register: now

- name: Tell of one incident
  gpuops.remediation.incident_info:
    incident_id: 20260301-101500-1a2b3c4d
"""

RETURN = r"""
mode:
  description: The mode.
  returned: success
  type: str
breaker:
  description: The breaker's numbers and whether it has C(tripped).
  returned: success
  type: dict
incidents:
  description: The incidents, each with where it is, its state, age, time left, the reason and the next command to type.
  returned: success
  type: list
  elements: dict
unfinished:
  description: Ids of incidents that run, for reconcile to take up unless their node's lock is held.
  returned: success
  type: list
  elements: str
overdue:
  description: Ids of those whose time is over.
  returned: success
  type: list
  elements: str
waiting:
  description: Ids of incidents that wait, fenced, those that have waited for longest first.
  returned: success
  type: list
  elements: str
due_again:
  description: Ids of held incidents that are worth another round, because the breaker was reset or the mode has changed.
  returned: success
  type: list
  elements: str
cancelled:
  description: Ids of incidents that a human ended.
  returned: success
  type: list
  elements: str
unhandled:
  description: Ids of messages in the inbox that nobody has read.
  returned: success
  type: list
  elements: int
unsent:
  description: Notifications that are not sent.
  returned: success
  type: list
  elements: dict
locks:
  description: The locks on nodes, as far as the ledger has heard of them; one that is not C(live) has lapsed.
  returned: success
  type: list
  elements: dict
held_alerts:
  description: Alerts that wait for a person.
  returned: success
  type: list
  elements: dict
incident:
  description: The incident, as M(gpuops.remediation.incident) returns it, with C(timeline), C(changes) and C(budget).
  returned: success and O(incident_id) is given
  type: dict
"""

from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.argspec import LEDGER_SPEC, open_ledger
from ansible_collections.gpuops.remediation.plugins.module_utils._module import run_module

SPEC = {
    "argument_spec": {**LEDGER_SPEC, "incident_id": {}, "node": {}, "closed": {"type": "bool", "default": False}},
}


def run(params, check_mode):
    # Reading makes no ledger: one that does not exist reads as a new one.
    ledger = open_ledger(params["ledger_url"], check_mode=True)
    result = {"changed": False, **ledger.overview(params["node"], params["closed"])}
    if params["incident_id"]:
        result["incident"] = ledger.story(params["incident_id"])
    return result


def main():
    run_module(SPEC, run)


if __name__ == "__main__":
    main()

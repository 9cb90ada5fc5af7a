#!/usr/bin/python

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: notification
short_description: Hand out notifications, and keep what became of them
description:
  - Notifications are written in the same transaction as what they tell of, once an incident and state.
  - A claimed notification is handed to nobody else for two minutes. One that failed comes up again, later each time, for the channels that
    it has not reached.
version_added: "0.1.0"
author: The gpuops.remediation maintainers (@gpuops)
extends_documentation_fragment:
  - gpuops.remediation.attributes
  - gpuops.remediation.ledger
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
  idempotent:
    support: partial
    details:
      - Claiming again returns what is due by then.
options:
  state:
    description: What to do.
    type: str
    required: true
    choices:
      claimed: Take those that are due, to send them.
      sent: They were sent.
      failed: They could not be sent.
      queued: Queue one of one's own, once for its O(key).
  ids:
    description: With O(state=sent) or O(state=failed), which.
    type: list
    elements: int
  channels:
    description: With O(state=claimed), the names of all channels that are configured. A notification is sent once each of them has it.
    type: list
    elements: str
    default: []
  channel:
    description: With O(state=sent), the channel that has it; without one, nothing is left to be done.
    type: str
  why:
    description: With O(state=failed), what went wrong.
    type: str
  limit:
    description: With O(state=claimed), how many at most.
    type: int
    default: 50
  key:
    description: With O(state=queued), what makes two notifications the same.
    type: str
  topic:
    description: With O(state=queued), what it is about, in one word.
    type: str
  payload:
    description: With O(state=queued), what it says.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Take what is due
  gpuops.remediation.notification:
    state: claimed
    channels: [pager, chat]
  register: due

- name: Say that the pager has all of it
  gpuops.remediation.notification:
    state: sent
    ids: "{{ due.notifications | map(attribute='id') }}"
    channel: pager
"""

RETURN = r"""
notifications:
  description: Those that are to be sent now.
  returned: success and O(state=claimed)
  type: list
  elements: dict
  contains:
    id:
      description: Its number, for O(ids).
      type: int
    topic:
      description:
        - The state in which an incident ended, or V(alert_held), V(message_unreadable), V(message_truncated), V(breaker_tripped), V(glass_broken) or
          V(glass_unreadable).
      type: str
    incident_id:
      description: The incident, if it is about one.
      type: str
    payload:
      description: What it says.
      type: dict
    channels:
      description: Those of O(channels) that it has not reached.
      type: list
      elements: str
"""

from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.argspec import LEDGER_SPEC, open_ledger
from ansible_collections.gpuops.remediation.plugins.module_utils._module import run_module

SPEC = {
    "argument_spec": {
        **LEDGER_SPEC,
        "state": {"required": True, "choices": ["claimed", "sent", "failed", "queued"]},
        "ids": {"type": "list", "elements": "int"},
        "channels": {"type": "list", "elements": "str", "default": []},
        "channel": {},
        "why": {},
        "limit": {"type": "int", "default": 50},
        "key": {"no_log": False},
        "topic": {},
        "payload": {"type": "dict", "default": {}},
    },
    "required_if": [("state", "sent", ["ids"]), ("state", "failed", ["ids", "why"]), ("state", "queued", ["key", "topic"])],
}


def run(params, check_mode):
    state = params["state"]
    ledger = open_ledger(params["ledger_url"], check_mode)
    if state == "claimed":
        due = ledger.claim_notifications(params["limit"], channels=params["channels"])
        return {"changed": bool(due), "notifications": due}
    if state == "queued":
        return {"changed": ledger.notify(params["key"], params["topic"], params["payload"])}
    if state == "sent":
        return {"changed": ledger.notifications_sent(params["ids"], params["channel"]) > 0}
    return {"changed": ledger.notifications_failed(params["ids"], params["why"]) > 0}


def main():
    run_module(SPEC, run)


if __name__ == "__main__":
    main()

#!/usr/bin/python
# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: backtest
short_description: Replay recorded alerts or kernel logs through the policy
description:
  - Says which incidents there would have been, what would have been done to which node and GPU and why, and where the breaker would have
    stopped it. It goes by the ledger's own rules, in memory and by the times of the recording.
  - Nothing is written anywhere, no node is asked and no API. Nobody releases a GPU or resets the breaker during a replay.
  - What a node would have answered is not in a recording. An alert's Xid counts as if the node confirms it, and a kernel log as if NVML has
    nothing to add.
  - An alert that may be one of many waits for the others, as in the event source. A kernel log names no group.
version_added: "0.1.0"
author: The gpuops.remediation maintainers (@gpuops)
extends_documentation_fragment:
  - gpuops.remediation.attributes
  - gpuops.remediation.attributes.info_module
  - gpuops.remediation.breaker
  - gpuops.remediation.correlation
requirements:
  - SQLAlchemy >= 2.0
  - alembic >= 1.13
  - PyYAML
  - jsonschema
options:
  messages:
    description:
      - A file with a message of Alertmanager's webhook (version 4), or a folder with such files (C(.json)). Each alert counts as received when
        it began.
      - Exactly one of O(messages) and O(kernel_logs) is required.
    type: path
  kernel_logs:
    description:
      - Kernel logs, one a node. The lines of a node with less than 720 seconds between them are one episode, with one verdict for each GPU.
    type: list
    elements: dict
    suboptions:
      node:
        description: The node's name.
        type: str
        required: true
      path:
        description: The log, as C(/dev/kmsg), C(dmesg) or C(journalctl -k) print it.
        type: path
        required: true
      boot_time:
        description: When the node had booted (ISO 8601, with the time zone), for lines that count the seconds since then.
        type: str
  policy_file:
    description: The policy, a YAML file. The collection ships it as C(data/xid_policy.yml).
    type: path
    required: true
  policy_schema_file:
    description: The JSON schema of the policy. By default C(xid_policy.schema.json) beside O(policy_file).
    type: path
  inventory:
    description:
      - The nodes, as M(gpuops.remediation.incident) takes them; it decides who is opted out and how large the breaker's groups are.
      - A node that is not in it is replayed all the same and named in RV(totals) as C(not_in_inventory).
    type: dict
    default: {}
  alert_labels:
    description: Which labels hold what, as M(gpuops.remediation.incident) takes them.
    type: dict
    default: {}
seealso:
  - module: gpuops.remediation.gpu_diagnosis
"""

EXAMPLES = r"""
- name: What would last month's messages have done?
  gpuops.remediation.backtest:
    messages: /srv/alertmanager/2026-11
    policy_file: "{{ playbook_dir }}/../data/xid_policy.yml"
  register: backtest

- name: What would a changed policy say of two nodes' kernel logs?
  gpuops.remediation.backtest:
    kernel_logs:
      - {node: gpu-1, path: logs/gpu-1.journal}
      - {node: gpu-2, path: logs/gpu-2.dmesg, boot_time: "2026-11-29T20:00:00Z"}
    policy_file: xid_policy.yml
    policy_schema_file: "{{ playbook_dir }}/../data/xid_policy.schema.json"
"""

RETURN = r"""
incidents:
  description: The incidents that there would have been, oldest first.
  returned: success
  type: list
  elements: dict
  contains:
    time: {description: When the fault began., type: str}
    kind: {description: "V(fault) of a GPU or node; V(group) for one fault of many nodes, which are not touched.", type: str}
    node: {description: "The node's name, or the group's.", type: str}
    nodes: {description: The nodes concerned., type: list, elements: str}
    gpu: {description: "The GPU as an incident names it; V(-) is the node itself.", type: str}
    xids: {description: Xid codes that took part., type: list, elements: int}
    domain: {description: What is broken., type: str}
    scope: {description: How far it reaches., type: str}
    action: {description: What would have been done., type: str}
    repair: {description: What cures it., type: str}
    certainty: {description: "certain, likely or none.", type: str}
    reasons: {description: Sentences for people., type: list, elements: str}
    fence: {description: Whether the alert alone would have tainted the node., type: bool}
    breaker: {description: "V(slot) where it would have taken one, V(tripped) where it would have been held, else null.", type: str}
    seen_again: {description: "How often it was reported again while it was open, by this or another alert.", type: int}
totals:
  description:
    - Counts. C(incidents), C(groups) (incidents of many nodes), C(nodes), C(actions) by their names, C(fences), C(tainted_nodes), C(held_by_breaker) and
      C(seen_again); what opens nothing (C(ignored), by why); and the names of nodes C(not_in_inventory).
  returned: success
  type: dict
breaker:
  description: The breaker's numbers, and whether, when and by which group it would have C(tripped).
  returned: success
  type: dict
held:
  description: How many alerts would have been held for people, by why.
  returned: success
  type: dict
truncated_alerts:
  description: How many alerts Alertmanager had left out of the messages.
  returned: success
  type: int
unread:
  description: Files that are no recording, each with C(path) and C(why).
  returned: success
  type: list
  elements: dict
table:
  description: All of it as a table for a terminal.
  returned: success
  type: str
"""

import os
from collections import Counter

from ansible.module_utils.basic import missing_required_lib
from ansible_collections.gpuops.remediation.plugins.module_utils._errors import MissingLibrary
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.alerts import label_map
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.arrivals import Correlation
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.backtest_table import table
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.errors import BadMessage
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.replay import RecordingInvalid, of_kernel_log, of_message
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger import backtest, database
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.argspec import BREAKER_SPEC, CORRELATION_SPEC
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.opening import read_file
from ansible_collections.gpuops.remediation.plugins.module_utils._module import run_module
from ansible_collections.gpuops.remediation.plugins.module_utils._xid import policy as xid_policy
from ansible_collections.gpuops.remediation.plugins.module_utils._xid.times import parse_time

SPEC = {
    "argument_spec": {
        "messages": {"type": "path"},
        "kernel_logs": {
            "type": "list",
            "elements": "dict",
            "options": {"node": {"required": True}, "path": {"type": "path", "required": True}, "boot_time": {}},
        },
        "policy_file": {"type": "path", "required": True},
        "policy_schema_file": {"type": "path"},
        "inventory": {"type": "dict", "default": {}},
        "alert_labels": {"type": "dict", "default": {}},
        **BREAKER_SPEC,
        **CORRELATION_SPEC,
    },
    "mutually_exclusive": [("messages", "kernel_logs")],
    "required_one_of": [("messages", "kernel_logs")],
}


def files(path):
    if not os.path.isdir(path):
        return [path]
    return sorted(entry.path for entry in os.scandir(path) if entry.name.endswith(".json"))


def read_messages(params, policy):
    faults, held, unread, truncated = [], Counter(), [], 0
    paths = files(params["messages"])
    for path in paths:
        try:
            message = of_message(read_file(path), policy, label_map(params["alert_labels"]))
        except BadMessage as error:
            unread.append({"path": path, "why": str(error)})
            continue
        faults += message.faults
        held.update(message.held)
        truncated += message.truncated
    if len(unread) == len(paths):
        raise RecordingInvalid("%s holds no message of Alertmanager" % params["messages"], unread=unread)
    return faults, {"held": dict(sorted(held.items())), "unread": unread, "truncated_alerts": truncated}


def read_log(log, policy):
    boot_time = parse_time(log["boot_time"]) if log["boot_time"] else None
    if log["boot_time"] and boot_time is None:
        raise RecordingInvalid("boot_time of %s is no time with a time zone" % log["node"])
    try:
        with open(log["path"], encoding="utf-8", errors="replace") as lines:
            return list(of_kernel_log(list(lines), log["node"], policy, boot_time))
    except OSError as error:
        raise RecordingInvalid("the kernel log %s cannot be read: %s" % (log["path"], error.strerror)) from error


def run(params, check_mode):
    for library, error in (
        ("PyYAML", xid_policy.YAML_IMPORT_ERROR),
        ("jsonschema", xid_policy.JSONSCHEMA_IMPORT_ERROR),
        ("SQLAlchemy, alembic", database.LIBRARY_ERROR),
    ):
        if error is not None:
            raise MissingLibrary(missing_required_lib(library), exception=str(error))
    policy = xid_policy.load_policy(params["policy_file"], params["policy_schema_file"])
    if params["messages"]:
        faults, more = read_messages(params, policy)
    else:
        faults = [fault for log in params["kernel_logs"] for fault in read_log(log, policy)]
        more = {"held": {}, "unread": [], "truncated_alerts": 0}
    result = {**backtest.backtest(faults, params["inventory"], params["breaker"], Correlation.by(policy, params["correlation"])), **more}
    return {"changed": False, **result, "table": table(result)}


def main():
    run_module(SPEC, run)


if __name__ == "__main__":
    main()

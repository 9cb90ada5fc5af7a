# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
short_description: Alertmanager's webhook with an inbox that survives a crash
description:
  - Takes messages of Alertmanager's webhook (version 4), commits them to the ledger's inbox, and only then answers.
  - "An event names inbox rows and nothing else, C({status: firing, inbox_ids: [1, 2]}): what an alert says never becomes a variable of a playbook.
    C(status) is C(resolved) where no alert of the rows fires. C({reconcile: too_large}) says that a message could not be taken, of which people are told too."
  - A row that nobody decides is handed on again; so is, after a restart, all that was left. Runs have to be idempotent, and those of this collection are.
  - It needs aiohttp, prometheus-client and SQLAlchemy beside ansible-rulebook. C(/healthz) and C(/metrics) need no token.
options:
  tokens:
    description: A bearer token, or a list of several while they are changed.
    type: list
    elements: str
    required: true
  port:
    description: Where to listen.
    type: int
    required: true
  host:
    description: The address to listen on.
    type: str
    default: 127.0.0.1
  path:
    description: Where messages are posted to.
    type: str
    default: /alerts
  certfile:
    description: A certificate, for TLS.
    type: str
  keyfile:
    description: The key of O(certfile).
    type: str
  cafile:
    description: Clients need a certificate of this authority.
    type: str
  ledger_url:
    description: The ledger, as for the collection's modules.
    type: str
    default: sqlite:////var/lib/gpuops/ledger.db
  alert_labels:
    description: Names of labels, as for M(gpuops.remediation.incident).
    type: dict
    default: {}
  window_seconds:
    description: Alerts that arrive this close together leave as one event.
    type: float
    default: 0.5
  batch_size:
    description: How many inbox rows one event names at most.
    type: int
    default: 200
  retry_seconds:
    description: After how long a row that was handed on and is not decided is handed on again.
    type: float
    default: 120
  client_seconds:
    description: How long a message may take to arrive, and a connection may be open without asking for anything; then it is closed.
    type: float
    default: 60
  max_body_bytes:
    description: Longer messages are refused, and a reconcile is asked for.
    type: int
    default: 16777216
  correlation_seconds:
    description:
      - Alerts of an application, an NVLink or a fabric may be one fault of many nodes; they wait this long for the others, and leave with them. All
        other alerts leave after O(window_seconds).
    type: float
    default: 15
  policy_file:
    description: The policy that says which alerts these are, and which are certain enough for a fence; by default the collection's own.
    type: path
  fence_in:
    description:
      - V(source) taints nodes for what the policy calls certain as soon as the alert is committed, which a playbook does seconds later. It opens
        the incidents for that, knows the nodes by the last run's inventory, and goes by the same rules (mode, breaker, written ahead).
      - V(playbook) leaves it to the run, as it is right without Kubernetes.
    type: str
    choices: [source, playbook]
    default: playbook
  kubeconfig:
    description: With O(fence_in=source), how to reach the Kubernetes API; by default as for M(gpuops.remediation.node_taint).
    type: path
  context:
    description: The context of O(kubeconfig).
    type: str
  prometheus_url:
    description: With O(fence_in=source), the Prometheus that has to confirm a fence.
    type: str
    default: ""
  prometheus_token:
    description: With O(fence_in=source), Prometheus's bearer token.
    type: str
  prometheus_ca_file:
    description: With O(fence_in=source), the authorities that sign Prometheus's certificate; by default those of the system.
    type: path
  limits:
    description: With O(fence_in=source), seconds as for M(gpuops.remediation.incident).
    type: dict
    default: {}
  max_parallel_nodes:
    description: With O(fence_in=source), how many nodes the runs work on at once; further incidents wait, fenced.
    type: int
    default: 5
  alertmanager_urls:
    description:
      - With O(fence_in=source), the addresses of Alertmanager, all of a cluster. It is asked what humans have silenced before a row is fenced
        that did not come in just now, such as one that was left when the source was stopped. Where it gives no answer the row is left to the run.
      - Without it such a row is fenced like any other.
    type: list
    elements: str
    default: []
  alertmanager_token:
    description: A bearer token for O(alertmanager_urls).
    type: str
  alertmanager_ca_file:
    description: The authority of Alertmanager's certificate.
    type: path
"""

EXAMPLES = r"""
- name: GPU alerts
  hosts: localhost
  sources:
    - gpuops.remediation.alertmanager:
        port: 5055
        tokens: ["{{ GPUOPS_TOKEN }}"]
  rules:
    - name: Remediate
      condition: event.inbox_ids is defined
      action:
        run_playbook:
          name: gpuops.remediation.remediate
          extra_vars:
            gpuops_inbox_ids: "{{ event.inbox_ids }}"
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

# ansible-rulebook runs a source by its file. Ansible's own loader of collections cannot help: its import hooks keep that from working.
_COLLECTIONS = Path(__file__).parents[6]
sys.path.append(str(_COLLECTIONS.parent))

import ansible_collections

if str(_COLLECTIONS) not in list(ansible_collections.__path__):  # a package elsewhere has that name
    ansible_collections.__path__.append(str(_COLLECTIONS))

from ansible_collections.gpuops.remediation.plugins.plugin_utils._trigger import source


async def main(queue: asyncio.Queue[Any], args: dict[str, Any]) -> None:
    """Serve until cancelled."""
    await source.run(queue, args)

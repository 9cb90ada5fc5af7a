#!/usr/bin/python

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: inbox_sync
short_description: Ask Alertmanager and Prometheus for alerts that no webhook has brought
description:
  - Puts into the ledger's inbox what fires now and is not known there, from Alertmanager, and what fired since the last time, from Prometheus.
    An alert that was delivered already is the same delivery, so only news becomes a row.
  - Alertmanager says what fires; what is silenced or inhibited there is left alone. Prometheus is believed about the present only for alerts
    that Alertmanager does not know.
  - An alert that is over, whose last sample is older than 60 s, becomes a hint. It opens an incident so that somebody looks at the node, and
    nothing is done on its word alone.
  - A source that does not answer is named in RV(missing), and keeps nobody from the other.
version_added: "0.1.0"
author: The gpuops.remediation maintainers (@gpuops)
extends_documentation_fragment:
  - gpuops.remediation.attributes
  - gpuops.remediation.ledger
  - gpuops.remediation.alertmanager
  - gpuops.remediation.prometheus
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: partial
    details:
      - An alert that is held, for instance of a node that is not in the inventory, is put up for another judgement each time while it fires.
options:
  alertmanager_receiver:
    description:
      - Which of Alertmanager's receivers is told of them, a regular expression for its whole name.
      - One that Alertmanager does not have is named in RV(missing).
    type: str
    default: gpuops
  alert_selector:
    description: Which of Prometheus's alerts they are, the inside of a selector. Prometheus knows no receivers.
    type: str
    default: remediation="gpuops"
  external_labels:
    description:
      - What Prometheus adds to the labels of each alert that it sends. By default its configuration is read.
      - Has to be given where that is not permitted, or where alerts are relabelled on their way. Prometheus is not asked before.
    type: dict
  alert_labels:
    description: As in M(gpuops.remediation.incident).
    type: dict
    default: {}
  lookback_seconds:
    description: How far the first look at Prometheus goes back. Later ones begin where the last one ended, and go back a day at most.
    type: int
    default: 900
"""

EXAMPLES = r"""
- name: Find what no webhook has brought
  gpuops.remediation.inbox_sync:
    alertmanager_urls: [https://alertmanager-0.example.org:9093, https://alertmanager-1.example.org:9093]
    prometheus_url: https://prometheus.example.org:9090
  register: found

- name: Open incidents for it
  gpuops.remediation.incident:
    inbox_ids: "{{ found.inbox_ids }}"
    inventory: "{{ nodes }}"
  when: found.inbox_ids | length > 0
"""

RETURN = r"""
inbox_ids:
  description: The rows of the inbox that somebody has to decide now; none in check mode.
  returned: success
  type: list
  elements: int
news:
  description: What is believed of each alert that is news, such as C(node), C(gpu_uuid), C(xid), C(starts_at), and C(hint) where it is over.
  returned: success
  type: list
  elements: dict
asked:
  description: How many alerts the sources told of.
  returned: success
  type: int
missing:
  description: Sources that are configured and could not be asked, each with C(source) and C(why).
  returned: success
  type: list
  elements: dict
"""

from datetime import timedelta

from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.argspec import (
    ALERTMANAGER_SPEC,
    PROMETHEUS_SPEC,
    alertmanager_of,
    prometheus_of,
)
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.alerts import label_map
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.argspec import LEDGER_SPEC, open_ledger
from ansible_collections.gpuops.remediation.plugins.module_utils._module import run_module
from ansible_collections.gpuops.remediation.plugins.module_utils._names import LABEL_REMEDIATION, REMEDIATION

SPEC = {
    "argument_spec": {
        **LEDGER_SPEC,
        **ALERTMANAGER_SPEC,
        **PROMETHEUS_SPEC,
        "alertmanager_receiver": {"default": "gpuops"},
        "alert_selector": {"default": '%s="%s"' % (LABEL_REMEDIATION, REMEDIATION)},
        "external_labels": {"type": "dict"},
        "alert_labels": {"type": "dict", "default": {}},
        "lookback_seconds": {"type": "int", "default": 900},
    },
}


def run(params, check_mode):
    from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.sync import Wanted, sync

    wanted = Wanted(
        params["alertmanager_receiver"],
        params["alert_selector"],
        label_map(params["alert_labels"]),
        timedelta(seconds=params["lookback_seconds"]),
        params["external_labels"],
    )
    found = sync(open_ledger(params["ledger_url"], check_mode), alertmanager_of(params), prometheus_of(params), wanted)
    rows = found.pop("rows")
    after = {one["fingerprint"]: one.get("starts_at") for one in found["news"]}
    return {
        **found,
        "changed": bool(rows),
        "inbox_ids": [] if check_mode else [row.inbox_id for row in rows],
        "diff": {"before": {}, "after": after if rows else {}},
    }


def main():
    run_module(SPEC, run)


if __name__ == "__main__":
    main()

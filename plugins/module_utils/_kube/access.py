# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""What the options of the modules that work on Kubernetes stand for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gpuops.remediation.plugins.module_utils._kube.client import KubeApi, connect
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.deadline import Deadline
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.lease import NodeLease
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.permit import Incident, Ledger, Permit
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.argspec import open_ledger


def api_of(params: Mapping[str, Any]) -> KubeApi:
    return connect(params["kubeconfig"], params["context"], params["api_timeout_seconds"])


def ledger_of(params: Mapping[str, Any], check_mode: bool) -> Ledger | None:
    """The ledger, if there is an incident to ask it about."""
    named = [params, *params.get("nodes", ())]
    return open_ledger(params["ledger_url"], check_mode) if any(entry["incident_id"] for entry in named) else None


def permit_of(node: str, params: Mapping[str, Any], api: KubeApi, ledger: Ledger | None, deadline: Deadline, check_mode: bool) -> Permit:
    """The permit to write `node`: with an incident the ledger is asked, with a token the lock."""
    incident = Incident(params["incident_id"], ledger, params["groups"]) if params["incident_id"] and ledger else None
    if params["lock_token"] is None or check_mode:  # renewing a lock is a write
        return Permit(node, incident)
    lease = NodeLease(api, params["lock_namespace"], node, deadline)
    return Permit(node, incident, lambda: lease.renew(params["lock_holder"], params["lock_token"]))

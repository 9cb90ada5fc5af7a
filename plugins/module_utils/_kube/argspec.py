# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Options of the modules that work on Kubernetes, and what they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.module_utils.basic import env_fallback
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.client import KubeApi, connect
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.deadline import Deadline
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.lease import NodeLease
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.permit import Incident, Ledger, Permit
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.argspec import open_ledger

CONNECTION_SPEC: dict[str, dict[str, Any]] = {
    "kubeconfig": {"type": "path", "fallback": (env_fallback, ["K8S_AUTH_KUBECONFIG"])},
    "context": {"fallback": (env_fallback, ["K8S_AUTH_CONTEXT"])},
    "api_timeout_seconds": {"type": "float", "default": 10.0},
}
LOCK_SPEC: dict[str, dict[str, Any]] = {
    "incident_id": {},
    "groups": {"type": "dict", "default": {}},
    "lock_token": {"type": "int", "no_log": False},
    "lock_holder": {},
    "lock_namespace": {"default": "gpuops-system"},
}


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

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    """How to reach a Kubernetes API, and on whose behalf nodes are written."""

    DOCUMENTATION = r"""
requirements:
  - kubernetes >= 24.2
options:
  kubeconfig:
    description:
      - The file that names the API server and holds the credentials.
      - Without it E(K8S_AUTH_KUBECONFIG), E(KUBECONFIG) and C(~/.kube/config) are looked at, in this order, then the service account of the
        pod in which the module runs.
    type: path
  context:
    description:
      - The context of O(kubeconfig) to use; by default its current one.
      - E(K8S_AUTH_CONTEXT) stands in for it.
    type: str
  api_timeout_seconds:
    description: How long one request to the API server may take. Requests without an answer are repeated until the module's deadline.
    type: float
    default: 10.0
"""

    LOCK = r"""
options:
  incident_id:
    description:
      - The incident on whose behalf the node is changed. The ledger is then asked before each write, and each change is written there ahead.
      - Without it nothing is asked and nothing recorded, which is an operator's own use of the module.
    type: str
  groups:
    description: The groups whose breaker counts this node, as M(gpuops.remediation.incident) returns them.
    type: dict
    default: {}
  lock_token:
    description: The token of the lock on the node. The lock is renewed before each write, and the module stops when somebody else has it.
    type: int
  lock_holder:
    description: Who holds the lock; required with O(lock_token).
    type: str
  lock_namespace:
    description: The namespace of the locks, which are C(coordination.k8s.io) Leases.
    type: str
    default: gpuops-system
"""

#!/usr/bin/python

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: node_lock
short_description: Take, renew or release the lock on a node
description:
  - One actor works on a node at a time. The lock is a lease with a token that only grows. Every module that works under it renews it,
    and stops with RV(error_kind=lock_lost) when somebody else has taken it.
  - A lease that lapsed and that nobody took is still its holder's.
  - The lock lives where all actors meet. Given a token from there, the file on the node and the ledger follow it, and refuse an older one.
version_added: "0.1.0"
author: The gpuops.remediation maintainers (@gpuops)
extends_documentation_fragment:
  - gpuops.remediation.attributes
  - gpuops.remediation.kubernetes
  - gpuops.remediation.ledger
  - gpuops.remediation.node.state_dir
attributes:
  check_mode:
    support: full
    details:
      - The token predicted in check mode is nobody's. Modules in check mode do not look at it.
  diff_mode:
    support: full
  idempotent:
    support: partial
    details:
      - Taking the lock again gives a new token, so that whoever resumes a run shuts out what is left of the old one. Given O(lock_token) it does not.
requirements:
  - For O(backend=file) neither SQLAlchemy nor the Kubernetes client is needed.
options:
  state:
    description: What is wanted.
    type: str
    default: taken
    choices:
      taken: O(lock_holder) has the lock.
      renewed: The lock is kept for another O(lease_seconds).
      released: O(lock_holder) has the lock no more. One that is another's is left alone.
  backend:
    description: Where the lock lives.
    type: str
    default: file
    choices:
      file: A file in O(state_dir) on the node.
      lease: A C(coordination.k8s.io) Lease. The module then runs on the controller.
      ledger: The ledger, for a node that does not answer, or as the mirror of a lock elsewhere. The module then runs on the controller.
  node:
    description: The node's name. Required unless O(backend=file).
    type: str
  lock_holder:
    description: Who wants or has the lock, such as the run.
    type: str
    required: true
  lock_token:
    description:
      - The token, as this module returned it. Required unless O(state=taken).
      - With O(state=taken) it is the token of the place where the lock lives, which O(backend=file) and O(backend=ledger) then follow.
    type: int
  incident_ids:
    description:
      - With O(state=taken) and O(backend=ledger) the incidents for whose sake the lock is taken. Where all of them have ended, by
        another run, the lock is refused with RV(error_kind=incident_ended).
    type: list
    elements: str
    default: []
  lock_namespace:
    description: The namespace of the Leases.
    type: str
    default: gpuops-system
  lease_seconds:
    description: How long the lock is kept without being renewed.
    type: int
    default: 30
  wait_seconds:
    description: How long to wait for another holder's lease to lapse; with O(backend=lease) O(api_timeout_seconds) longer.
    type: float
    default: 0
"""

EXAMPLES = r"""
- name: Take the lock of a node on Kubernetes
  gpuops.remediation.node_lock:
    backend: lease
    node: gpu-1
    lock_holder: run-4711
    wait_seconds: 40
  delegate_to: localhost
  register: lock

- name: Let the modules on the node know
  gpuops.remediation.node_lock:
    lock_holder: run-4711
    lock_token: "{{ lock.token }}"
"""

RETURN = r"""
token:
  description: The token to give to the modules that work under the lock.
  returned: success
  type: int
  sample: 1772359200
before:
  description: Who had the lock, and whether the lease was live.
  returned: success
  type: dict
  sample:
    holder: run-4710
    token: 1772359199
    live: false
after:
  description: Who has it now.
  returned: success
  type: dict
actions:
  description: What was done, or would be in check mode.
  returned: success
  type: list
  elements: dict
error_kind:
  description:
    - V(lock_held) when another has the lock, V(lock_lost) when it is no longer O(lock_holder)'s, V(incident_ended) when all of
      O(incident_ids) have ended.
  returned: failure
  type: str
"""

from ansible_collections.gpuops.remediation.plugins.module_utils._converge import Outcome, Step
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.argspec import CONNECTION_SPEC
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.argspec import LEDGER_SPEC
from ansible_collections.gpuops.remediation.plugins.module_utils._module import run_module
from ansible_collections.gpuops.remediation.plugins.module_utils._node.argspec import STATE_DIR_OPTIONS
from ansible_collections.gpuops.remediation.plugins.module_utils._node.lock import LEASE_SECONDS
from ansible_collections.gpuops.remediation.plugins.module_utils._node.lock_places import Held, change, place_of

SPEC = {
    "argument_spec": {
        **CONNECTION_SPEC,
        **LEDGER_SPEC,
        **STATE_DIR_OPTIONS,
        "state": {"type": "str", "default": "taken", "choices": ["taken", "renewed", "released"]},
        "backend": {"type": "str", "default": "file", "choices": ["file", "lease", "ledger"]},
        "node": {"type": "str"},
        "lock_holder": {"type": "str", "required": True},
        "lock_token": {"type": "int", "no_log": False},
        "incident_ids": {"type": "list", "elements": "str", "default": []},
        "lock_namespace": {"type": "str", "default": "gpuops-system"},
        "lease_seconds": {"type": "int", "default": LEASE_SECONDS},
        "wait_seconds": {"type": "float", "default": 0},
    },
    "required_if": [
        ("backend", "lease", ("node",)),
        ("backend", "ledger", ("node",)),
        ("state", "renewed", ("lock_token",)),
        ("state", "released", ("lock_token",)),
    ],
}


def run(params, check_mode):
    before, after = change(place_of(params, check_mode=check_mode), params, check_mode=check_mode)
    moved = (before.holder, before.token) != (after.holder, after.token)
    steps = [Step(params["state"], f"lock of {params['node'] or params['state_dir']}", before.show(), after.show())] if moved else []
    return {"token": after.token, **Outcome(before, after, steps).result(Held.show)}


def main():
    run_module(SPEC, run)


if __name__ == "__main__":
    main()

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: isolation_findings
short_description: Judge how far a node keeps its GPU tenants apart
version_added: "0.1.0"
author: The gpuops.remediation maintainers (@gpuops)
description:
  - Each finding is of one rule; the rules stand in the documentation of the role P(gpuops.remediation.isolation_audit#role).
  - Containers that match O(system) are not judged. Findings that match O(accepted) are returned with the reason.
  - Read the pods first and the allocations then. A pod that came in between under the name of another one is then not taken for it.
options:
  _input:
    description: What M(gpuops.remediation.isolation_info) has returned.
    type: dict
    required: true
  node:
    description: The node's name.
    type: str
    required: true
  pods:
    description: The API's pods that are bound to the node, where Kubernetes is the orchestrator and was read.
    type: list
    elements: dict
  allocations:
    description: What M(gpuops.remediation.gpu_allocations_info) has returned, likewise.
    type: dict
  missing:
    description: Other sources that could not be read, with C(source) and C(why).
    type: list
    elements: dict
    default: []
  kubernetes:
    description: Whether Kubernetes is the orchestrator, be it read or not.
    type: bool
    default: false
  system:
    description: Containers and units that are to see all GPUs, as patterns of C(NAMESPACE/POD), C(RUNTIME/ID) or the path of the cgroup.
    type: list
    elements: str
    default: []
  mps_clients:
    description: Who may reach an MPS daemon of the node, likewise.
    type: list
    elements: str
    default: []
  shared_gpus:
    description: GPUs that several may use at once, as patterns of their UUIDs.
    type: list
    elements: str
    default: []
  compute_mode:
    description: The compute mode that GPUs without MIG are to have.
    type: str
    choices: [default, exclusive_thread, prohibited, exclusive_process]
  memory_max:
    description: The memory limit that a container without one may be given.
    type: str
  fix_toolkit:
    description: Whether the container toolkit's settings may be changed.
    type: bool
    default: false
  accepted:
    description: Findings that somebody has accepted, by patterns C(rule), C(node), C(subject) and C(detail), and C(why).
    type: list
    elements: dict
    default: []
  engine_faults:
    description: Known faults, as in C(data/engine_faults.yml).
    type: list
    elements: dict
    default: []
"""

EXAMPLES = r"""
- name: Read the node
  gpuops.remediation.isolation_info:
  register: isolation

- name: Show what is wrong
  ansible.builtin.debug:
    msg: "{{ isolation | gpuops.remediation.isolation_findings(node='gpu-1') | map(attribute='evidence') }}"
"""

RETURN = r"""
_value:
  description:
    - The findings, the worst first, each with C(node), C(subject), C(rule), C(severity) (V(low), V(medium), V(high), V(critical)), C(evidence), C(why) and
      C(fix) in words.
    - C(pod), C(container) and C(cgroup) where it is of a container; C(detail), such as the number of a known fault.
    - C(automatic), what a safe fix needs to know, where there is one for this finding; C(accepted), why somebody has accepted it.
  type: list
  elements: dict
"""

from collections.abc import Mapping, Sequence
from typing import Any, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._isolation.judge import Expectations, Judge


def isolation_findings(
    facts: Mapping[str, Any],
    node: str,
    pods: Optional[Sequence[Mapping[str, Any]]] = None,
    allocations: Optional[Mapping[str, Any]] = None,
    missing: Sequence[Mapping[str, str]] = (),
    **expected: Any,
) -> list[dict[str, Any]]:
    return Judge(node, facts, Expectations(**expected), pods, allocations, missing).findings()


class FilterModule:
    """Ansible's entry."""

    def filters(self) -> dict[str, Any]:
        return {"isolation_findings": isolation_findings}

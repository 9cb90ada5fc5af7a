# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
"""What the modules that change layouts share."""

from __future__ import annotations

from typing import Any, Callable

from ansible.module_utils.basic import AnsibleModule, missing_required_lib
from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu import nvml
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.requests import Request
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.task import LayoutTask, Options
from ansible_collections.gpuops.remediation.plugins.module_utils._node.argspec import LOCK_TOGETHER, NODE_OPTIONS
from ansible_collections.gpuops.remediation.plugins.module_utils._node.journal import Journal
from ansible_collections.gpuops.remediation.plugins.module_utils._node.lock import guard
from ansible_collections.gpuops.remediation.plugins.module_utils._node.node import Node

_STRINGS = {"type": "list", "elements": "str", "default": []}

OPTIONS: dict[str, Any] = {
    **NODE_OPTIONS,
    "busy": {"type": "str", "default": "fail", "choices": ["fail", "wait", "drain"]},
    "busy_timeout_seconds": {"type": "float", "default": 60},
    "grace_seconds": {"type": "float", "default": 30},
    "protect": _STRINGS,
    "given": _STRINGS,
    "allow_reset": {"type": "bool", "default": False},
    "timeout_seconds": {"type": "float", "default": 120},
    "deadline_seconds": {"type": "float"},
    "nvidia_smi": {"type": "str", "default": "nvidia-smi"},
    "nvidia_modprobe": {"type": "str", "default": "nvidia-modprobe"},
    "incident_id": {"type": "str"},
    "why": {"type": "str", "default": "asked for by an operator"},
}
COMPUTE: dict[str, Any] = {
    "type": "list",
    "elements": "dict",
    "options": {"slices": {"type": "int", "required": True}, "start": {"type": "int"}},
}
_WAYS = ("counts", "instances", "mig_parted", "mig_enabled")  # to say what is wanted
_PARTED = ("mig_parted", "mig_parted_config")
_WANTED: dict[str, Any] = {
    "gpus": {"type": "list", "elements": "str", "default": []},
    "counts": {"type": "dict"},
    "instances": {
        "type": "list",
        "elements": "dict",
        "options": {"profile": {"type": "str", "required": True}, "start": {"type": "int"}, "compute": COMPUTE},
    },
    "mig_parted": {"type": "raw"},
    "mig_parted_config": {"type": "str"},
    "mig_enabled": {"type": "bool"},
}
LAYOUT_SPEC: dict[str, Any] = {
    "argument_spec": {
        **OPTIONS,
        **_WANTED,
        "layouts": {
            "type": "list",
            "elements": "dict",
            "options": _WANTED,
            "mutually_exclusive": [_WAYS[:3]],
            "required_one_of": [_WAYS],
            "required_together": [_PARTED],
        },
        "may_move": {"type": "bool", "default": True},
    },
    "mutually_exclusive": [_WAYS[:3], *(("layouts", name) for name in ("gpus", *_WAYS))],
    "required_one_of": [(*_WAYS, "layouts")],
    "required_together": [*LOCK_TOGETHER, _PARTED],
}


def run(module: AnsibleModule, request: Callable[[], Request]) -> None:
    """Ends the module."""
    if nvml.IMPORT_ERROR:
        module.fail_json(msg=missing_required_lib("nvidia-ml-py"), exception=nvml.IMPORT_ERROR)
    params = module.params
    node = Node.from_params(params)
    try:
        keep_lock = guard(node, params, check_mode=module.check_mode)
        task = LayoutTask(node, request(), Options.from_params(params), Journal.from_params(node, params), keep_lock)
        result, warnings = task.run(check_mode=module.check_mode)
    except RemediationError as error:
        module.fail_json(**error.failure())
    for warning in warnings:
        module.warn(warning)
    module.exit_json(**result) if not result.get("failed") else module.fail_json(**result)

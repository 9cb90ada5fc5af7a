# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Options of the modules that work on Kubernetes. What they stand for is in access.py, whose client no node has."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.basic import env_fallback

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
TAINT_SPEC: dict[str, dict[str, Any]] = {
    "key": {"required": True, "no_log": False},
    "value": {"default": ""},
    "effect": {"required": True, "choices": ["NoSchedule", "PreferNoSchedule", "NoExecute"]},
}

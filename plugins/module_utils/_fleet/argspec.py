# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""The options for Alertmanager and Prometheus, and what they stand for; None where nothing is configured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Optional

if TYPE_CHECKING:
    from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.alertmanager import Alertmanager
    from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.prometheus import Prometheus

ALERTMANAGER_SPEC: dict[str, dict[str, Any]] = {
    "alertmanager_urls": {"type": "list", "elements": "str", "default": []},
    "alertmanager_token": {"no_log": True},
    "alertmanager_ca_file": {"type": "path"},
    "alertmanager_timeout_seconds": {"type": "float", "default": 5.0},
}
PROMETHEUS_SPEC: dict[str, dict[str, Any]] = {
    "prometheus_url": {"default": ""},
    "prometheus_token": {"no_log": True},
    "prometheus_ca_file": {"type": "path"},
    "prometheus_timeout_seconds": {"type": "float", "default": 5.0},
}


def alertmanager_of(params: Mapping[str, Any]) -> Optional[Alertmanager]:
    if not params["alertmanager_urls"]:
        return None
    from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.alertmanager import Alertmanager

    names = ("alertmanager_urls", "alertmanager_timeout_seconds", "alertmanager_token", "alertmanager_ca_file")
    return Alertmanager(*(params[name] for name in names))


def prometheus_of(params: Mapping[str, Any]) -> Optional[Prometheus]:
    if not params["prometheus_url"]:
        return None
    from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.prometheus import Prometheus

    names = ("prometheus_url", "prometheus_timeout_seconds", "prometheus_token", "prometheus_ca_file")
    return Prometheus(*(params[name] for name in names))

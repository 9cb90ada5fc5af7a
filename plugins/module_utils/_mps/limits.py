# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""What may be asked of MPS, judged before the daemon sees it, and a tenant's budget as a limit for each of its processes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional, Union

from ansible_collections.gpuops.remediation.plugins.module_utils._mps.errors import BadValue

MIB = 1 << 20
PRIORITIES = {"normal": 0, "below_normal": 1}
NO_LIMIT = "none"
_SIZE = re.compile(r"([1-9]\d*)([MG])")
MEMORY, THREADS, PRIORITY = "memory_limit_mib", "active_thread_percentage", "client_priority"
Value = Optional[Union[int, float]]
Settings = Mapping[str, Value]


@dataclass(frozen=True)
class Tenant:
    """MPS limits each process by itself: `clients` processes have `budget_mib` together, and one more of them goes past it."""

    budget_mib: int
    clients: int

    @property
    def each_mib(self) -> int:
        return self.budget_mib // self.clients

    def report(self, clients_now: int) -> dict[str, Any]:
        return {
            "memory_budget_bytes": self.budget_mib * MIB,
            "clients": self.clients,
            "each_client_bytes": self.each_mib * MIB,
            "clients_now": clients_now,
            "together_now_bytes": self.each_mib * MIB * clients_now,
            "within_budget": clients_now <= self.clients,
        }


def size_mib(name: str, text: str) -> int:
    """Whole numbers with M or G, as the daemon understands them; a bare number would be MiB to it and bytes to everybody else."""
    found = _SIZE.fullmatch(text.strip())
    if not found:
        raise BadValue(f"{name}: {text!r} is not a whole number of M or G, such as 512M or 8G")
    return int(found.group(1)) * (1024 if found.group(2) == "G" else 1)


def memory_limit(text: str, device_mib: int) -> Optional[int]:
    """None is no limit. One that is not below the device's memory holds nobody back, which is not what a limit is asked for."""
    if text == NO_LIMIT:
        return None
    mib = size_mib("memory_limit", text)
    _refuse_useless("memory_limit", mib, device_mib)
    return mib


def tenant_of(budget: str, clients: int, device_mib: int) -> Tenant:
    mib = size_mib("tenant.memory_budget", budget)
    if clients < 1:
        raise BadValue(f"tenant.clients: {clients} processes cannot share a budget")
    if mib < clients:
        raise BadValue(f"tenant.memory_budget: {budget} is less than 1M for each of {clients} processes")
    tenant = Tenant(mib, clients)
    _refuse_useless("tenant.memory_budget", mib, device_mib)
    return tenant


def _refuse_useless(name: str, mib: int, device_mib: int) -> None:
    if mib > device_mib:
        raise BadValue(f"{name}: {mib}M is more than the {device_mib}M that the device has")


def percentage(value: float) -> float:
    """The daemon keeps what it had when it is told 0 or more than 100, and tells tenths."""
    if not 0 < value <= 100 or round(value, 1) != value:
        raise BadValue(f"active_thread_percentage: {value:g} is not above 0, up to 100, in tenths at the finest")
    return value


def settings_of(params: Mapping[str, Any], device_mib: int) -> tuple[dict[str, Value], Optional[Tenant]]:
    """Only what was asked for; the rest stays as it is."""
    wanted: dict[str, Value] = {}
    tenant = None
    if params["tenant"]:
        tenant = tenant_of(params["tenant"]["memory_budget"], params["tenant"]["clients"], device_mib)
        wanted[MEMORY] = tenant.each_mib
    elif params["memory_limit"] is not None:
        wanted[MEMORY] = memory_limit(params["memory_limit"], device_mib)
    if params["active_thread_percentage"] is not None:
        wanted[THREADS] = percentage(params["active_thread_percentage"])
    if params["client_priority"] is not None:
        wanted[PRIORITY] = PRIORITIES[params["client_priority"]]
    return wanted, tenant

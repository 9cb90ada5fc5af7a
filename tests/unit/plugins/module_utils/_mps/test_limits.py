# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._mps.errors import BadValue
from ansible_collections.gpuops.remediation.plugins.module_utils._mps.limits import (
    MEMORY,
    PRIORITY,
    THREADS,
    Tenant,
    memory_limit,
    percentage,
    settings_of,
    tenant_of,
)

NOTHING = {"tenant": None, "memory_limit": None, "active_thread_percentage": None, "client_priority": None}


@pytest.mark.parametrize("text", ["banana", "1.5G", "1T", "-1G", "0G", "0", "4096", "4GB", "4g", "", "4G 1", "201G", "4G\nquit"])
def test_sizes_that_the_daemon_takes_for_something_else(text):
    with pytest.raises(BadValue):
        memory_limit(text, 200 * 1024)


def test_sizes_that_mean_what_they_say():
    assert [memory_limit(text, 200 * 1024) for text in ("4G", "512M", "200G", "none")] == [4096, 512, 204800, None]


@pytest.mark.parametrize("value", [0, -5, 100.1, 250, 33.33, 0.04, float("nan"), float("inf")])
def test_percentages_that_the_daemon_drops(value):
    with pytest.raises(BadValue):
        percentage(value)


def test_a_tenants_processes_share_its_budget():
    tenant = tenant_of("10G", 3, 200 * 1024)
    assert tenant.each_mib == 3413 and 3 * tenant.each_mib <= 10 * 1024, "rounded down"
    assert Tenant(10240, 2).report(3) == {
        "memory_budget_bytes": 10 << 30,
        "clients": 2,
        "each_client_bytes": 5 << 30,
        "clients_now": 3,
        "together_now_bytes": 15 << 30,
        "within_budget": False,
    }


@pytest.mark.parametrize(("budget", "clients"), [("4G", 0), ("4G", -1), ("2M", 3), ("201G", 2), ("lots", 1)])
def test_budgets_that_cannot_be_shared(budget, clients):
    with pytest.raises(BadValue):
        tenant_of(budget, clients, 200 * 1024)


def test_only_what_was_asked_for_is_set():
    assert settings_of(NOTHING, 1024) == ({}, None)
    some = {**NOTHING, "memory_limit": "none", "active_thread_percentage": 33.3, "client_priority": "below_normal"}
    assert settings_of(some, 1024)[0] == {MEMORY: None, THREADS: 33.3, PRIORITY: 1}
    wanted, tenant = settings_of({**NOTHING, "tenant": {"memory_budget": "1G", "clients": 4}}, 1024)
    assert wanted == {MEMORY: 256} and tenant.each_mib == 256

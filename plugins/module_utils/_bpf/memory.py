# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""What the pinned maps of cuda_mem say. Needs no privilege beyond what the pins' modes ask for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.remediation.plugins.module_utils._bpf import arrays
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.functions import Operation
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.layout import COUNTERS, Account, CgroupIds, FailureKey, Usage
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.maps import PinnedMap


def accounts(maps: Path) -> list[Account]:
    with PinnedMap(str(maps / "accounts")) as entries:
        return [Account.parse(value) for _serial, value in entries.items()]


def processes(found: list[Account]) -> dict[tuple[int, int], list[Account]]:
    """By pid and start, so that a pid's earlier owner is not taken for the present one."""
    by_process: dict[tuple[int, int], list[Account]] = {}
    for account in found:
        by_process.setdefault((account.tgid, account.start_boottime_ns), []).append(account)
    return by_process


def cgroups(maps: Path) -> dict[CgroupIds, Usage]:
    with PinnedMap(str(maps / "cgroups")) as entries:
        return {CgroupIds.parse(key): Usage.parse(value) for key, value in entries.items()}


def counters(maps: Path) -> dict[str, int]:
    return arrays.counters(maps / "counters", COUNTERS, but="next_serial")


def failures(maps: Path) -> list[Mapping[str, Any]]:
    with PinnedMap(str(maps / "failures")) as entries:
        found = [(FailureKey.parse(key), arrays.number(value)) for key, value in entries.items()]
    return [
        {"cgroup": vars(key.cgroup), "operation": Operation(key.operation).name.lower(), "result": key.result, "count": count}
        for key, count in found
    ]

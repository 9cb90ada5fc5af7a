# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Who has which GPU, from the sources that a kubelet offers, each read by a child under a watchdog. The first that tells all of it counts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Callable

from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._node import device_allocations, pod_resources
from ansible_collections.gpuops.remediation.plugins.module_utils._node.statedir import StateDir
from ansible_collections.gpuops.remediation.plugins.module_utils._node.watchdog import Collect, Emit, Watchdog

SOURCES = ("pod_resources", "checkpoint")


class AllocationsUnknown(RemediationError):
    """Who has what cannot be told, which is not the same as that nobody has anything."""

    kind = "allocations_unknown"


def read(kubelet_dir: str, sources: Sequence[str], state: StateDir, timeout_seconds: float) -> dict[str, Any]:
    readers: dict[str, Callable[[], dict[str, Any]]] = {
        "pod_resources": partial(pod_resources.read, kubelet_dir, timeout_seconds),
        "checkpoint": partial(device_allocations.read, kubelet_dir),
    }
    collects: dict[str, Collect] = {name: partial(_tell, readers[name]) for name in sources}
    answers, _abandoned = Watchdog(state, timeout_seconds).collect(collects)
    missing = [{"source": name, "why": answers[name].why} for name in sources if answers[name].why]
    for name in sources:
        if not answers[name].why:
            return {"source": name, **answers[name].items[0], "missing": missing}
    raise AllocationsUnknown("; ".join(f"{one['source']}: {one['why']}" for one in missing), missing=missing)


def _tell(reader: Callable[[], dict[str, Any]], emit: Emit) -> None:
    emit(reader())

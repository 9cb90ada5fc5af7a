# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Which programs failed on which GPU: the memory behind S14."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Optional

WINDOW_SECONDS = 24 * 3600


def failed_programs(verdict: Mapping[str, Any], info: Optional[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """What a verdict of domain application says about programs; the executable where it is known, for a pid means nothing tomorrow."""
    if verdict.get("domain") != "application" or not info:
        return
    gpus = {gpu.get("pci_bus_id"): gpu for gpu in info.get("gpus") or ()}
    for xid in info.get("xids") or ():
        gpu = gpus.get(xid.get("pci_bus_id"))
        if not gpu or xid.get("code") not in (verdict.get("xids") or ()) or verdict.get("gpu_uuid") not in (None, gpu["uuid"]):
            continue
        known: Mapping[str, Any] = next((process for process in gpu.get("processes") or () if process.get("pid") == xid.get("pid")), {})
        program = known.get("executable") or known.get("name") or xid.get("process_name")
        if program:
            yield {"gpu_uuid": gpu["uuid"], "code": xid["code"], "program": str(program), "time": xid.get("time")}

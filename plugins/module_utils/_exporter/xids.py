# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Xids of this boot, counted. Nothing is read here.

The kernel overwrites its log, so what was counted once is kept with the number of the last line that was. Both are in one record: it is
written whole, and a line is counted once, whoever dies in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.gpuops.remediation.plugins.module_utils._node.kernel_log import parse_record
from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import parse_seconds

Counted = dict[str, Any]
NONE: Counted = {"sequence": -1, "counts": []}


def counted(before: Mapping[str, Any], items: Iterable[Mapping[str, Any]], since: float, now: float) -> Counted:
    """`items` are the kernel log's, as its reader tells them. A switch's are not a GPU's.

    The kernel's stamps drift from the clock. A line that was not there at `since`, when the log was last read, is no older than that.
    """
    counts = {(one["pci_bus_id"], one["gi"], one["code"]): dict(one) for one in before["counts"]}
    last = before["sequence"]
    for item in items:
        record, xid = parse_record(item["line"]), item["xid"]
        if record is None or record.sequence <= before["sequence"]:
            continue
        last = max(last, record.sequence)
        if xid and xid["code"] is not None and not xid["sxid"] and xid["pci_bus_id"]:
            key = (xid["pci_bus_id"], xid["gi"], xid["code"])
            one = counts.setdefault(key, {"pci_bus_id": key[0], "gi": key[1], "code": key[2], "count": 0, "last_seconds": 0.0})
            one["count"] += 1
            one["last_seconds"] = min(now, max(parse_seconds(xid["time"]), since))
    return {"sequence": last, "counts": list(counts.values())}

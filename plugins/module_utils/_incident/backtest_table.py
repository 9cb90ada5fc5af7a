# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""What a backtest found, as a table for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_WIDE = 120  # characters of a reason
_HEAD = ("TIME", "NODE", "GPU", "XID", "ACTION", "SCOPE", "CERTAINTY", "REPAIR", "FENCE", "BREAKER", "AGAIN", "WHY")


def table(result: Mapping[str, Any]) -> str:
    """One line an incident, and the totals below."""
    rows = [_HEAD, *map(_row, result["incidents"])]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    return "\n".join([*lines, "", *_totals(result)])


def _row(line: Mapping[str, Any]) -> Sequence[str]:
    reason = "".join(letter if letter.isprintable() else "\ufffd" for letter in str((line["reasons"] or [""])[0]))
    return (
        line["time"],
        line["node"] if line["kind"] == "fault" else "%s (%d nodes)" % (line["node"], len(line["nodes"])),
        line["gpu"],
        ",".join(map(str, line["xids"])) or "-",
        line["action"],
        line["scope"],
        line["certainty"],
        line["repair"],
        "yes" if line["fence"] else "no",
        line["breaker"] or "-",
        str(line["seen_again"]),
        reason if len(reason) <= _WIDE else reason[: _WIDE - 1] + "\u2026",
    )


def _totals(result: Mapping[str, Any]) -> Sequence[str]:
    totals, breaker = result["totals"], result["breaker"]
    words = [
        "%d incidents on %d nodes: %s" % (totals["incidents"], totals["nodes"], _counts(totals["actions"]) or "nothing to do"),
        "%d fenced on the alert alone; %d nodes tainted; seen again %d times"
        % (totals["fences"], totals["tainted_nodes"], totals["seen_again"]),
    ]
    if totals["groups"]:
        words.append("%d of them of many nodes, which are left to people as they are" % totals["groups"])
    if breaker["tripped"]:
        words.append("the breaker trips at %s (%s): %d held from then on" % (breaker["at"], breaker["group"], totals["held_by_breaker"]))
    else:
        words.append("the breaker does not trip")
    if totals["ignored"]:
        words.append("opens nothing: %s" % _counts(totals["ignored"]))
    if result["held"]:
        words.append("held for people: %s" % _counts(result["held"]))
    if result["truncated_alerts"]:
        words.append("%d alerts had been left out of the messages" % result["truncated_alerts"])
    if totals["not_in_inventory"]:
        words.append("not in the inventory, so held in a run: %s" % ", ".join(totals["not_in_inventory"]))
    return words + ["not read: %s (%s)" % (one["path"], one["why"]) for one in result["unread"]]


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join("%d %s" % (count, name) for name, count in counts.items())

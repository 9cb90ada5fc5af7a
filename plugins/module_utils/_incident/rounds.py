# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Another round of an incident that has ended: when nobody has looked yet, and what of the earlier rounds outlives it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._xid.policy import QUARANTINES

Record = Mapping[str, Any]


def unseen(state: str, verdict: Optional[Record], stages: Mapping[str, Record]) -> bool:
    """Whether nobody has looked at an ended incident's GPU: no verdict, one for want of an answer, or the alert's word alone (S12)."""
    if not verdict or (verdict.get("action") == "hold" and verdict.get("certainty") == "none"):
        return True
    sources = {fact.get("source") for fact in verdict.get("evidence") or ()}
    if stages.get("diagnose", {}).get("outcome") in ("failed", "timed_out") or (state == "held_for_human" and sources == {"alert"}):
        return True
    return any(stage.get("error_kind") == "node_silent" for name, stage in stages.items() if name != "verify")


def asks_for_quarantine(verdict: Optional[Record]) -> bool:
    return bool(verdict) and (verdict or {}).get("action") in QUARANTINES


def kept(proven: Record, new: Optional[Record] = None, merged_into: Optional[str] = None) -> dict[str, Any]:
    """The verdict of a round in which a quarantine stands that this round does not ask for: only a release lifts it, with its checks (S17).

    Those go by the verdict that asked for it, so that one stays, and nothing more is done.
    """
    if new is None:
        told = "not diagnosed anew yet"
    elif merged_into:
        told = "diagnosed anew, it is the same fault as incident %s" % merged_into
    else:
        told = " ".join(["diagnosed anew, the verdict asks for %s:" % new.get("action"), *(new.get("reasons") or ())])
    reasons = ["The quarantine stands, and only release.yml lifts it; %s" % told, *(proven.get("reasons") or ())]
    ours = {name: (new or {}).get(name, default) for name, default in (("certainty", "none"), ("suspects", []), ("further", []))}
    return {**proven, **ours, "action": "hold", "quarantine_stands": True, "reasons": reasons}

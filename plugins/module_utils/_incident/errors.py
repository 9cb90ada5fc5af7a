# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""What the incident's rules and its ledger refuse, each with the `kind` that playbooks branch on."""

from __future__ import annotations

from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError


class LedgerUnavailable(RemediationError):
    """The ledger cannot be read or written, so nothing may be changed on nodes (S19)."""

    kind = "ledger_unavailable"


class AnothersLedger(LedgerUnavailable):
    """It is no other's to use than the controller's that it belongs to (S5)."""


class ModeForbids(RemediationError):
    """The mode does not allow this write (S4)."""

    kind = "mode_forbids"


class IncidentEnded(RemediationError):
    """The incident has ended; only release may still undo its changes."""

    kind = "incident_ended"


class IncidentCancelled(IncidentEnded):
    """A human took the incident over (S6)."""

    kind = "incident_cancelled"


class UnknownIncident(RemediationError):
    """No incident has this id."""

    kind = "unknown_incident"


class UnknownChange(RemediationError):
    """No open change has this id or target."""

    kind = "unknown_change"


class ChangesLeft(RemediationError):
    """The incident cannot be released while changes of it stand."""

    kind = "changes_left"


class BreakerTripped(RemediationError):
    """Too many nodes of one group in too short a time (S8)."""

    kind = "breaker_tripped"


class LockHeld(RemediationError):
    """Another actor works on this node (S5)."""

    kind = "lock_held"


class LockLost(RemediationError):
    """The lock on this node went to somebody else (S5)."""

    kind = "lock_lost"


class BadMessage(RemediationError):
    """The message as a whole cannot be read; single bad alerts are held instead (S2)."""

    kind = "bad_message"

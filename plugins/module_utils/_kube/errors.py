# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""What can go wrong between this collection and a Kubernetes API; the kinds are stable and playbooks branch on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError


class KubeError(RemediationError):
    """The API answered, and the answer is final: asking again would not help."""

    kind = "kube_error"

    def __init__(
        self, message: str, *, status: int = 0, causes: Sequence[str] = (), retry_after: float | None = None, **details: Any
    ) -> None:
        super().__init__(message, **details)
        self.status = status
        self.causes = causes
        self.retry_after = retry_after


class NotFound(KubeError):
    kind = "not_found"


class Forbidden(KubeError):
    kind = "forbidden"


class Conflict(KubeError):
    """Somebody wrote in between: read again, plan again."""

    kind = "conflict"


class ApiUnavailable(KubeError):
    """No answer, or one that says "later" (429, 5xx): worth another try until the deadline."""

    kind = "api_unavailable"


class NodeGone(RemediationError):
    kind = "node_gone"


class NodeRecreated(RemediationError):
    """Another machine stands under the name; what was known about the old one says nothing about it."""

    kind = "node_recreated"


class NotManaged(RemediationError):
    kind = "not_managed"


class HumanOverride(RemediationError):
    """Somebody undid our change while its incident is open; it is not made again."""

    kind = "human_override"


class DeviceNotTaintable(RemediationError):
    """This GPU cannot be taken out alone; its node can."""

    kind = "device_not_taintable"


class EvictIncomplete(RemediationError):
    kind = "evict_incomplete"

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""The fence in the source itself: Ansible needs two seconds to start, and this is done by then."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.alertmanager import AlertmanagerUnavailable
from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.argspec import alertmanager_of, prometheus_of
from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.fence import certain_alone, fence
from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.silences import Silences
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.arrivals import How
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.budget import Limits
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.modes import TAINT, allows
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.client import KubeApi, connect
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.deadline import Deadline
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.reception import Kept
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.store import Ledger
from ansible_collections.gpuops.remediation.plugins.module_utils._xid.policy import Policy
from ansible_collections.gpuops.remediation.plugins.plugin_utils._trigger.settings import Settings

DEADLINE_SECONDS = 5.0  # then the run goes on, whose taint stage has time to try again
ANSWER_SECONDS = 2.0  # of Prometheus, and of Alertmanager
FRESH = timedelta(seconds=5)  # since a row came in: Alertmanager has just sent it, and sends nothing that is silenced

_LOG = logging.getLogger("gpuops.remediation.alertmanager")


class Fencer:
    """Blocks, so it runs in a thread of its own. It opens incidents only for what the policy calls certain; all else is left to the run."""

    def __init__(self, settings: Settings, ledger: Ledger, policy: Policy) -> None:
        self._settings, self._ledger, self._policy = settings, ledger, policy
        self._limits = Limits.of(settings.limits)
        asked = witnesses(settings)
        self._prometheus, self._alertmanager = prometheus_of(asked), alertmanager_of(asked)
        self._api: Optional[KubeApi] = None

    @staticmethod
    def is_for(row: Kept) -> bool:
        """Whether anything in the row may be fenced on the alert's word."""
        return row.firing and not row.patient and row.node is not None

    def fence(self, rows: Sequence[Kept]) -> Counter[str]:
        """How many incidents came out how: fenced, not_confirmed or failed."""
        if not allows(self._ledger.mode(), TAINT):
            return Counter()
        if self._alertmanager is None:
            return self._fence(rows, None)
        since = self._ledger.now() - FRESH
        told = self._fence([row for row in rows if row.received_at > since], None)
        left = [row for row in rows if row.received_at <= since]
        try:
            return told + self._fence(left, self._alertmanager.silences()) if left else told
        except AlertmanagerUnavailable as error:  # what may be silenced is left to the run
            _LOG.warning("%d rows not fenced from here: %s", len(left), error)
            return told

    def _fence(self, rows: Sequence[Kept], silences: Optional[Silences]) -> Counter[str]:
        if not rows:
            return Counter()
        how = How(self._ledger.nodes(), self._settings.labels, self._limits, self._settings.max_parallel_nodes, silences=silences)
        ids = [row.inbox_id for row in rows]
        incidents = self._ledger.open_some(ids, how, lambda alert: certain_alone(alert.record(), self._policy) is not None)
        if not incidents:
            return Counter()
        self._api = self._api or connect(self._settings.kubeconfig, self._settings.context, DEADLINE_SECONDS)
        told = fence(self._ledger, self._api, self._policy, incidents, self._prometheus, Deadline(DEADLINE_SECONDS), last=False)
        if any(one["error_kind"] == "forbidden" for one in told):
            self._api = None  # its token was changed, perhaps: the next time it is read again
        return Counter("fenced" if one["fenced"] else "failed" if one["error_kind"] else "not_confirmed" for one in told)


def witnesses(settings: Settings) -> dict[str, Any]:
    """Who is asked, as the modules' options name it."""
    return {**vars(settings), "prometheus_timeout_seconds": ANSWER_SECONDS, "alertmanager_timeout_seconds": ANSWER_SECONDS}

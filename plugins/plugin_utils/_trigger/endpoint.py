# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""The webhook that Alertmanager posts to."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from ansible_collections.gpuops.remediation.plugins.module_utils._incident.alerts import Alert
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.errors import BadMessage
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.parcels import parcels
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.reception import Kept
from ansible_collections.gpuops.remediation.plugins.plugin_utils._trigger.commits import Arrival
from ansible_collections.gpuops.remediation.plugins.plugin_utils._trigger.connections import Connections
from ansible_collections.gpuops.remediation.plugins.plugin_utils._trigger.libraries import web
from ansible_collections.gpuops.remediation.plugins.plugin_utils._trigger.metrics import Metrics
from ansible_collections.gpuops.remediation.plugins.plugin_utils._trigger.settings import Settings

_SMALL_BYTES = 16 * 1024  # a thread would take longer

Commit = Callable[[Sequence[Arrival]], Awaitable[list[Kept]]]
IsPatient = Callable[[Alert], bool]
Lost = Callable[[str, str], Awaitable[None]]  # why, and the same in words


class Endpoint:
    """Answers only after the commit. 4xx is for what no retry mends, since Alertmanager then waits for its next group interval; 503 for the rest."""

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        commit: Commit,
        received: Callable[[list[Kept]], None],
        lost: Lost,
        is_patient: IsPatient,
    ):
        self._settings, self._labels, self._metrics, self._is_patient = settings, settings.labels, metrics, is_patient
        self._commit, self._received, self._lost = commit, received, lost
        self._tokens = [b"Bearer " + token.encode() for token in settings.tokens]
        self.connections = Connections(settings.client_seconds)
        self.writable = self.readable = True  # whether the last commit went through, and the last look

    def application(self) -> web.Application:
        application = web.Application(client_max_size=self._settings.max_body_bytes, middlewares=[self.connections.middleware()])
        application.router.add_post(self._settings.path, self._alerts)
        application.router.add_get("/healthz", self._healthz)
        application.router.add_get("/metrics", self._show_metrics)
        return application

    async def _alerts(self, request: web.Request) -> web.Response:
        if not self._may(request.headers.get("Authorization", "")):
            return self._refuse(401, "token", "a bearer token is needed")
        try:
            async with asyncio.timeout(self._settings.client_seconds):
                body = await request.read()
        except TimeoutError:
            return self._refuse(503, "too_slow", "the message did not come to its end within %g s" % self._settings.client_seconds)
        except web.HTTPRequestEntityTooLarge:
            text = "more than %d bytes are not read" % self._settings.max_body_bytes
            await self._lost("too_large", text)
            return self._refuse(413, "too_large", text)
        try:
            cut = partial(parcels, body, self._labels, self._is_patient)
            found = cut() if len(body) <= _SMALL_BYTES else await asyncio.to_thread(cut)
        except BadMessage as error:
            await self._lost("not_json", str(error))
            return self._refuse(400, "not_json", str(error))
        source = "alertmanager at %s" % (request.remote or "unknown")
        try:
            kept = await self._commit([(parcel, source) for parcel in found])
        except Exception:  # whatever keeps it from being stored, Alertmanager is to try again
            self.writable = False
            return self._refuse(503, "ledger_unavailable", "the ledger cannot be used")
        self.writable = True
        self._metrics.messages.inc()
        self._metrics.duplicates.inc(sum(row.repeat for row in kept))
        self._metrics.accepted.inc(sum(not row.repeat for row in kept))
        self._received(kept)
        return web.json_response({"inbox_ids": [row.inbox_id for row in kept]})

    def _may(self, given: str) -> bool:
        """Every token is compared, each in constant time."""
        sent = given.encode(errors="surrogateescape")
        return sum(hmac.compare_digest(sent, token) for token in self._tokens) > 0

    def _refuse(self, status: int, why: str, text: str) -> web.Response:
        self._metrics.refused.labels(why).inc()
        return web.Response(status=status, text=text + "\n", headers={"WWW-Authenticate": "Bearer"} if status == 401 else None)

    async def _healthz(self, request: web.Request) -> web.Response:
        return (
            web.Response(text="ok\n") if self.writable and self.readable else web.Response(status=503, text="the ledger cannot be used\n")
        )

    async def _show_metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=await self._metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

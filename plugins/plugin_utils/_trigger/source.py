# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""The event source's life: take what was left, listen, hand on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._diagnosis.correlation import domain_of
from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.argspec import open_ledger
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.reception import Kept
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.store import Ledger
from ansible_collections.gpuops.remediation.plugins.module_utils._xid.policy import Policy, load_policy
from ansible_collections.gpuops.remediation.plugins.plugin_utils._trigger.batches import Batches
from ansible_collections.gpuops.remediation.plugins.plugin_utils._trigger.commits import Commits
from ansible_collections.gpuops.remediation.plugins.plugin_utils._trigger.connections import server_log
from ansible_collections.gpuops.remediation.plugins.plugin_utils._trigger.endpoint import Endpoint
from ansible_collections.gpuops.remediation.plugins.plugin_utils._trigger.fencer import Fencer
from ansible_collections.gpuops.remediation.plugins.plugin_utils._trigger.libraries import required, web
from ansible_collections.gpuops.remediation.plugins.plugin_utils._trigger.metrics import Metrics
from ansible_collections.gpuops.remediation.plugins.plugin_utils._trigger.settings import Settings

_LOG = logging.getLogger("gpuops.remediation.alertmanager")
_LOOK_SECONDS = 1.0  # how often the ledger is asked about rows that wait or were handed over
_IDLE_SECONDS = 30.0  # and else: another source's rows, and commits whose answer was lost, are found too
_STORM_SECONDS = 0.05  # for as long, what arrives is one reason to look
_FENCE_SECONDS = 15
_FENCE_ROWS = 500  # with one question to the ledger
_LOST_SECONDS = 60.0  # Alertmanager posts a refused message every few seconds


class Source:
    def __init__(self, settings: Settings, ledger: Ledger, policy: Policy, queue: asyncio.Queue[Any]) -> None:
        self._settings, self._ledger, self._queue = settings, ledger, queue
        self._metrics = Metrics(ledger.figures)
        self._commits = Commits(ledger.keep)
        self._batches = Batches(settings.window_seconds, settings.batch_size, settings.retry_seconds, settings.correlation_seconds)
        self._endpoint = Endpoint(
            settings,
            self._metrics,
            self._commits.commit,
            self._received,
            self._lost,
            lambda alert: domain_of(alert.xid, policy) is not None,
        )
        self._fencer = Fencer(settings, ledger, policy) if settings.fence_in == "source" else None
        self._unfenced: dict[int, Kept] = {}  # rows that wait for the fencer, or are with it; no run gets them before
        self._to_fence = asyncio.Event()
        self._fencing: Optional[asyncio.Task[Counter[str]]] = None
        self._reconciles: list[str] = []  # that are to be asked for, by why
        self._asked: dict[str, float] = {}  # and when each was, last
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Until it is cancelled."""
        await self._settle()
        runner = web.AppRunner(
            self._endpoint.application(),
            access_log=None,  # it would quote headers
            logger=server_log(_LOG.name + ".server"),
            auto_decompress=False,  # Alertmanager compresses nothing, and what is not compressed cannot be broken or a bomb
            shutdown_timeout=5,
        )
        await runner.setup()
        try:
            # Outside of the group, whose error would not say that the port is taken.
            await web.TCPSite(runner, self._settings.host, self._settings.port, ssl_context=self._settings.tls).start()
            _LOG.info("listening on %s, path %s", runner.addresses, self._settings.path)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._commits.run())
                tasks.create_task(self._fence())
                tasks.create_task(self._hand_on())
                tasks.create_task(self._close_idle(runner))
        finally:
            await runner.cleanup()

    async def _close_idle(self, runner: web.AppRunner) -> None:
        while True:
            await asyncio.sleep(min(5.0, self._settings.client_seconds / 2))
            self._endpoint.connections.close_idle(runner.server.connections, self._now())

    def _received(self, rows: Iterable[Kept]) -> None:
        new = {
            row.inbox_id: row for row in rows if row.due and row.inbox_id not in self._unfenced and not self._batches.knows(row.inbox_id)
        }
        for_fencer = {name: row for name, row in new.items() if self._fencer and self._fencer.is_for(row)}
        if for_fencer:
            self._unfenced.update(for_fencer)
            self._to_fence.set()
        if len(new) > len(for_fencer):
            self._batches.add([row for name, row in new.items() if name not in for_fencer], self._now())
            self._wake.set()

    async def _fence(self) -> None:
        """Whoever arrives while some are being fenced goes with the next."""
        while self._fencer:
            await self._to_fence.wait()
            rows = list(self._unfenced.values())[:_FENCE_ROWS]
            await self._fence_these(self._fencer, rows)
            for row in rows:
                del self._unfenced[row.inbox_id]
            if not self._unfenced:
                self._to_fence.clear()
            self._batches.add(rows, self._now())
            self._wake.set()

    async def _fence_these(self, fencer: Fencer, rows: list[Kept]) -> None:
        """Within a time: one that hangs, in a credentials program for example, keeps no row, and no second one is started beside it (S20)."""
        if self._fencing and not self._fencing.done():
            return
        self._fencing = asyncio.create_task(asyncio.to_thread(fencer.fence, rows))
        if not (await asyncio.wait([self._fencing], timeout=_FENCE_SECONDS))[0]:
            _LOG.warning("a fence has taken more than %d s; until it ends, fencing is left to the runs", _FENCE_SECONDS)
            return
        try:
            for outcome, count in self._fencing.result().items():
                self._metrics.fences.labels(outcome).inc(count)
        except RemediationError as error:
            _LOG.warning("not fenced from here: %s", error)
        except Exception:  # whatever it is, the run does it too
            _LOG.exception("not fenced from here")

    async def _lost(self, why: str, text: str) -> None:
        """A message that cannot be kept may have held news: people are told once an hour, and a reconcile is asked for."""
        hour = int(time.time() // 3600)
        with contextlib.suppress(RemediationError):  # the answer says that it was refused
            await asyncio.to_thread(self._ledger.notify, "message_%s:%d" % (why, hour), "message_refused", {"why": why, "reason": text})
        if why not in self._asked or self._now() - self._asked[why] >= _LOST_SECONDS:
            self._asked[why] = self._now()
            self._reconciles.append(why)
            self._wake.set()

    async def _hand_on(self) -> None:
        while True:
            while self._reconciles:
                await self._put(_event(reconcile=self._reconciles.pop()))
            with self._reading():
                await self._settle()
                if self._batches.waiting:
                    batch = self._batches.take(await asyncio.to_thread(self._ledger.busy_nodes), self._now())
                    if batch:
                        await self._hand_over(batch)
                        continue
            await self._rest()

    async def _put(self, event: Mapping[str, Any]) -> None:
        """The engine takes nothing while its runs are busy. What the ledger decides meanwhile is seen, and told outside, all the same."""
        putting = asyncio.create_task(self._queue.put(event))
        try:
            while not (await asyncio.wait([putting], timeout=_LOOK_SECONDS))[0]:
                with self._reading():
                    await self._settle()
            await putting
        finally:
            putting.cancel()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """A ledger that is away is asked again; what is committed stays."""
        try:
            yield
        except RemediationError as error:
            self._endpoint.readable = False
            _LOG.warning("%s", error)

    async def _hand_over(self, batch: list[Kept]) -> None:
        self._batches.handed(batch, math.inf)  # nobody has them before the engine takes them, so nobody is late
        for status, firing in (("firing", True), ("resolved", False)):
            ids = [row.inbox_id for row in batch if row.firing is firing]
            if ids:
                await self._put(_event(status=status, inbox_ids=ids))
                self._metrics.handed_over.inc(len(ids))
        self._batches.handed(batch, self._now())

    async def _settle(self) -> None:
        asked = self._now()
        waiting, oldest = await asyncio.to_thread(self._ledger.waiting)
        self._endpoint.readable = True
        self._batches.settle(set(waiting), asked, self._now())
        unknown = [inbox_id for inbox_id in waiting if inbox_id not in self._unfenced and not self._batches.knows(inbox_id)]
        if unknown:
            self._received(await asyncio.to_thread(self._ledger.undecided, unknown))
        self._metrics.undecided.set(len(waiting))
        self._metrics.oldest = oldest.timestamp() if oldest else None

    async def _rest(self) -> None:
        """Until something arrives, a window ends, or it is time to look again."""
        self._wake.clear()
        if self._reconciles:
            return
        seconds = _IDLE_SECONDS
        if not self._batches.idle:
            ends = self._batches.next_look(self._now())
            seconds = _LOOK_SECONDS if ends is None else min(_LOOK_SECONDS, ends - self._now())
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._wake.wait(), seconds)
            await asyncio.sleep(_STORM_SECONDS)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def _event(**content: Any) -> dict[str, Any]:
    """References and enumerated values, nothing that an alert said (S1)."""
    return {**content, "meta": {"uuid": str(uuid.uuid4())}}


async def run(queue: asyncio.Queue[Any], args: Mapping[str, Any]) -> None:
    required()
    settings = Settings.of(args)
    if settings.takes_tokens_in_the_clear:
        _LOG.warning("tokens come unencrypted to %s: certfile and keyfile are for other machines than this one", settings.host)
    policy = load_policy(settings.policy_file)
    ledger = await asyncio.to_thread(open_ledger, settings.ledger_url)
    try:
        await Source(settings, ledger, policy, queue).run()
    finally:
        ledger.close()

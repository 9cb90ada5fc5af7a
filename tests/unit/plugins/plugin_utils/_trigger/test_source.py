# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections import Counter

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.reception import Kept
from ansible_collections.gpuops.remediation.plugins.module_utils._xid.policy import load_policy
from ansible_collections.gpuops.remediation.plugins.plugin_utils._trigger import source
from ansible_collections.gpuops.remediation.plugins.plugin_utils._trigger.fencer import Fencer
from ansible_collections.gpuops.remediation.plugins.plugin_utils._trigger.settings import POLICY_FILE, Settings
from ledgers import NOON, clock, ledger, url

__all__ = ["clock", "ledger", "url"]


class Hanging:
    """A fencer whose first call does not come back until it is told to."""

    is_for = staticmethod(Fencer.is_for)

    def __init__(self):
        self.free, self.asked = threading.Event(), []

    def fence(self, rows):
        self.asked.append([row.inbox_id for row in rows])
        self.free.wait(20)
        return Counter()


def row(inbox_id, **more):
    return Kept(inbox_id, f"gpu-{inbox_id}", **{"firing": True, "received_at": NOON, **more})


async def until(check):
    for _attempt in range(500):
        if check():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("not in time")


def test_a_fence_that_hangs_keeps_no_row(ledger, monkeypatch):
    """S20: no second one is started beside it; what is not for the fencer does not wait for it at all."""
    monkeypatch.setattr(source, "_FENCE_SECONDS", 0.2)
    fencer = Hanging()

    async def run():
        settings = Settings.of({"tokens": "t", "port": 0, "fence_in": "source"})
        made = source.Source(settings, ledger, load_policy(POLICY_FILE), asyncio.Queue())
        made._fencer = fencer
        task = asyncio.create_task(made._fence())
        made._received([row(1), row(2, patient=True), row(3, firing=False)])
        assert [made._batches.knows(number) for number in (1, 2, 3)] == [False, True, True]
        await until(lambda: made._batches.knows(1))
        made._received([row(4)])
        await until(lambda: made._batches.knows(4))
        assert fencer.asked == [[1]]
        fencer.free.set()
        await until(made._fencing.done)
        made._received([row(5)])
        await until(lambda: made._batches.knows(5))
        assert fencer.asked == [[1], [5]]
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(run())


def test_a_port_that_is_taken_is_named(ledger):
    """It is the first thing that goes wrong, and ansible-rulebook shows no more of an error than its words."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        made = source.Source(Settings.of({"tokens": "t", "port": port}), ledger, load_policy(POLICY_FILE), asyncio.Queue())
        with pytest.raises(OSError, match=rf"'127\.0\.0\.1', {port}\).*in use"):
            asyncio.run(made.run())

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import asyncio
import threading

import pytest
from ansible_collections.gpuops.remediation.plugins.plugin_utils._trigger.commits import Commits


async def outcomes(keep, during=None, count=3):
    """What each of some requests gets; the first commit is on its way before the others come."""
    commits = Commits(keep)
    running = asyncio.create_task(commits.run())
    first = asyncio.create_task(commits.commit([0]))
    await asyncio.sleep(0.05)
    others = [asyncio.create_task(commits.commit([number])) for number in range(1, count)]
    await asyncio.sleep(0)
    if during:
        during(running)
    answers = await asyncio.wait_for(asyncio.gather(first, *others, return_exceptions=True), 5)
    running.cancel()
    return answers


def test_who_comes_meanwhile_shares_the_next_commit():
    gate, calls = threading.Event(), []

    def keep(arrivals):
        calls.append(list(arrivals))
        gate.wait(5)
        return [number * 10 for number in arrivals]

    assert asyncio.run(outcomes(keep, lambda running: gate.set())) == [[0], [10], [20]]
    assert calls == [[0], [1, 2]]


def test_an_error_reaches_everybody_who_shared_it():
    def keep(arrivals):
        raise ValueError("away")

    assert [str(answer) for answer in asyncio.run(outcomes(keep))] == ["away"] * 3


def test_who_waits_when_it_stops_hears_so():
    """Else the server would wait for their answers, and ansible-rulebook for the server."""
    gate = threading.Event()

    def keep(arrivals):
        gate.wait(0.5)
        return arrivals

    answers = asyncio.run(outcomes(keep, lambda running: running.cancel()))
    assert [type(answer) for answer in answers] == [ConnectionError] * 3


def test_a_client_that_has_gone_disturbs_nobody():
    async def run():
        commits = Commits(lambda arrivals: [number * 10 for number in arrivals])
        gone, stays = (asyncio.create_task(commits.commit([number])) for number in (1, 2))
        await asyncio.sleep(0)
        gone.cancel()
        running = asyncio.create_task(commits.run())
        answer = await asyncio.wait_for(stays, 5)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        return answer

    assert asyncio.run(run()) == [20]

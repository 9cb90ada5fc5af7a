# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Very many messages at the event source: how fast they are answered, and whether each of them is there afterwards."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path

from alerts import recorded, rewritten
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.store import Ledger
from cluster.objects import wait_until
from loop import Controller
from trigger import TOKEN, Rulebook, Source, cpu_seconds, memory_bytes

POSTS = 10_000
CONNECTIONS = 50


def show(name: str, folder: Path, ledger_url: str) -> None:
    """One alert of another node in each post, then all of them once more; AssertionError where one is refused, lost or kept twice."""
    requests = [_request(number) for number in range(POSTS)]
    with Source(folder, ledger_url).running() as source:
        first = asyncio.run(_post_all(source.port, requests, CONNECTIONS))
        cpu, peak = cpu_seconds(source.process), memory_bytes(source.process, "VmHWM")
        handed = source.handed_on(POSTS, seconds=120)
        again = asyncio.run(_post_all(source.port, requests, CONNECTIONS))
    ledger = Ledger.open(ledger_url)
    kept, _oldest = ledger.waiting()
    ledger.close()
    assert sorted(first.ids) == sorted(again.ids) == sorted(handed) == kept and len(kept) == POSTS
    for what, found in ((f"{POSTS} messages over {CONNECTIONS} connections, {name}", first), ("the same again", again)):
        slow = statistics.quantiles(found.answers_ms, n=100)[98]
        print(
            f"| {what}: all answered | {found.seconds:.1f} s | median {statistics.median(found.answers_ms):.0f} ms, 99 % within {slow:.0f} ms |"
        )
    print(f"| the first of them: CPU time and peak of memory of the event source | {cpu:.1f} s | {peak / 1e6:.0f} MB |", flush=True)


def show_rulebook(folder: Path) -> None:
    """The same posts at the real ansible-rulebook, which holds the source in its process. All are handed on at once when all have come, so that
    no run takes the machine before."""
    requests = [_request(number) for number in range(POSTS)]
    with Controller(folder / "controller") as controller:
        controller.node("bare-1", gpus=1)
        settings = {"gpuops_trigger_window_seconds": 60, "gpuops_trigger_batch_size": POSTS}
        with Rulebook(controller, **settings).running() as rulebook:
            process = rulebook.process
            idle, began = memory_bytes(process, "VmRSS"), cpu_seconds(process)
            found = asyncio.run(_post_all(rulebook.port, requests, CONNECTIONS))
            cpu, answered = cpu_seconds(process) - began, memory_bytes(process, "VmRSS")
            wait_until(lambda: rulebook.metric("gpuops_trigger_handed_over_total") == POSTS, "all of them handed on", 240)
            peak = memory_bytes(process, "VmHWM")
    slow = statistics.quantiles(found.answers_ms, n=100)[98]
    median = statistics.median(found.answers_ms)
    print(
        f"| {POSTS} messages at ansible-rulebook: all answered | {found.seconds:.1f} s | median {median:.0f} ms, 99 % within {slow:.0f} ms |"
    )
    print(f"| CPU time of ansible-rulebook meanwhile | {cpu:.1f} s | |")
    print(
        "| its memory (VmRSS) before, and when all were answered; peak (VmHWM), all handed on "
        f"| {idle / 1e6:.0f} MB, {answered / 1e6:.0f} MB | {peak / 1e6:.0f} MB |",
        flush=True,
    )


@dataclass
class Answers:
    seconds: float = 0.0
    ids: list[int] = field(default_factory=list)
    answers_ms: list[float] = field(default_factory=list)


def _request(number: int) -> bytes:
    body = json.dumps(rewritten(recorded("firing-single"), {"node": f"gpu-{number}"})).encode()
    head = f"POST /alerts HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def _post_all(port: int, requests: list[bytes], connections: int) -> Answers:
    left = iter(requests)
    found = Answers()

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for request in left:
            began = time.perf_counter()
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
            body = await reader.readexactly(length)
            assert head.startswith(b"HTTP/1.1 200 "), (head, body)
            found.answers_ms.append((time.perf_counter() - began) * 1e3)
            found.ids += json.loads(body)["inbox_ids"]
        writer.close()
        await writer.wait_closed()

    began = time.monotonic()
    await asyncio.gather(*(client() for _connection in range(connections)))
    found.seconds = time.monotonic() - began
    return found

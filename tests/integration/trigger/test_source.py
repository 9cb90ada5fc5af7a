# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The event source as a process of its own, over both kinds of ledger."""

from __future__ import annotations

import contextlib
import json
import queue
import ssl
from concurrent.futures import ThreadPoolExecutor

import pytest
from alerts import recorded, rewritten
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.parcels import parcels
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.store import Ledger
from cluster import certificate
from cluster.objects import wait_until
from trigger import TOKEN, Source

CANARY = "{{ lookup('pipe', 'touch /tmp/canary') }}"


def message(*nodes, **labels):
    made = [rewritten(recorded("firing-single"), {"node": node, **labels}) for node in nodes]
    return {**made[0], "alerts": [alert for one in made for alert in one["alerts"]]}


@pytest.fixture
def ledger(url):
    opened = Ledger.open(url)
    yield opened
    opened.close()


@pytest.fixture
def source(tmp_path, url, ledger):
    with Source(tmp_path, url, window_seconds=0.1).running() as running:
        yield running


def decide(ledger, *ids):
    inventory = {f"gpu-{number}": {"host": f"h{number}", "uid": f"u{number}"} for number in range(300)}
    ledger.open_from_inbox(ids, inventory)


@contextlib.contextmanager
def away(ledger):
    def rename(old, new):
        with ledger.write() as connection:
            connection.exec_driver_sql(f"ALTER TABLE {old} RENAME TO {new}")

    rename("inbox", "elsewhere")
    yield
    rename("elsewhere", "inbox")


def inbox_ids(answer):
    status, body = answer
    assert status == 200, body
    return json.loads(body)["inbox_ids"]


def test_an_event_names_rows_and_nothing_else(source, ledger):
    """S1, S2: whatever an alert says stays in the ledger, also of one that nobody can use."""
    content = message("gpu-1", "gpu-2", pod=CANARY, xid="79")
    content["alerts"].append({"status": CANARY, "labels": {"node": CANARY}})
    ids = inbox_ids(source.post(content))
    event = source.events.get(timeout=10)
    assert (len(ids), event["inbox_ids"], event["status"], set(event), set(event["meta"])) == (
        3,
        ids,
        "firing",
        {"inbox_ids", "meta", "status"},
        {"uuid"},
    )
    assert "lookup" not in json.dumps(event) + source.log.read_text()
    assert [row.node for row in ledger.undecided()] == ["gpu-1", "gpu-2", None]


def test_a_repeat_is_the_same_delivery(source, ledger):
    """Handed on once; again only while nobody has decided, and never after that."""
    content = message("gpu-1")
    [first] = inbox_ids(source.post(content))
    assert source.handed_on(1) == [first]
    assert inbox_ids(source.post({**content, "receiver": "the other of a pair"})) == [first]
    decide(ledger, first)
    assert inbox_ids(source.post(content)) == [first]
    with pytest.raises(queue.Empty):
        source.handed_on(1, seconds=2)
    assert [source.metric(f"gpuops_trigger_{name}_total") for name in ("messages", "accepted", "duplicates", "handed_over")] == [3, 1, 2, 1]


def test_a_busy_node_holds_nobody_back(source, ledger):
    token = ledger.take_lock("gpu-1", "an incident")
    ids = inbox_ids(source.post(message("gpu-1", "gpu-2")))
    assert source.handed_on(1) == [ids[1]]
    ledger.release_lock("gpu-1", token)
    assert source.handed_on(1) == [ids[0]]


@pytest.mark.parametrize("round_", range(2))
def test_killed_in_a_storm(tmp_path, url, ledger, round_):
    """Whatever was answered 200 is handed on after the restart, unless it is decided already."""
    source = Source(tmp_path, url, window_seconds=0.2)
    answered, handed = set(), []

    def post(number):
        try:
            answered.update(inbox_ids(source.post(message(f"gpu-{number}"))))
        except OSError:  # not answered, so Alertmanager posts it again
            return

    with source.running(), ThreadPoolExecutor(20) as pool:
        posts = [pool.submit(post, number) for number in range(200)]
        handed += source.handed_on(40)
        decide(ledger, *handed[:10])
        source.kill()
        for one in posts:
            one.result()
    decided = set(handed[:10])
    while not source.events.empty():
        source.events.get()
    kept = {row.inbox_id for row in ledger.undecided()}
    assert answered - decided <= kept
    with source.running():
        assert sorted(source.handed_on(len(kept))) == sorted(kept)


def test_a_stuck_engine_holds_no_answer(tmp_path, url, ledger):
    with Source(tmp_path, url, stuck=True).running() as source:
        ids = [inbox_ids(source.post(message(f"gpu-{number}")))[0] for number in range(30)]
    assert [row.inbox_id for row in ledger.undecided()] == ids


def test_a_stuck_engine_hides_nothing(tmp_path, url, ledger):
    """What the ledger decides, or that it is away, is seen while the engine takes no event."""
    with Source(tmp_path, url, stuck=True, window_seconds=0.1).running() as source:
        ids = inbox_ids(source.post(message("gpu-0")))
        wait_until(lambda: source.metric("gpuops_trigger_handed_over_total") == 1, "its queue is full", 60)
        ids += inbox_ids(source.post(message("gpu-1")))
        wait_until(lambda: source.metric("gpuops_inbox_depth") == 2, "they are seen to wait", 60)
        decide(ledger, *ids)
        wait_until(lambda: source.metric("gpuops_inbox_depth") == 0, "they are seen to be decided", 60)
        assert source.metric("gpuops_inbox_oldest_seconds") == 0
        with away(ledger):
            wait_until(lambda: source.request("GET", "/healthz", token=None)[0] == 503, "the ledger is seen to be away", 60)
        wait_until(lambda: source.request("GET", "/healthz", token=None)[0] == 200, "and back", 60)


def test_a_ledger_that_is_away(source, ledger):
    """503, which Alertmanager retries, until it is back."""
    with away(ledger):
        assert source.post(message("gpu-1"))[0] == 503
        assert source.request("GET", "/healthz", token=None)[0] == 503
    [row] = inbox_ids(source.post(message("gpu-1")))
    assert source.request("GET", "/healthz", token=None) == (200, b"ok\n")
    assert source.handed_on(1) == [row]


def test_who_may(tmp_path, url):
    with Source(tmp_path, url, tokens=["old", "new"], max_body_bytes=100_000).running() as source:
        for token in (None, "", "ol", "older", "näw", "Bearer old"):
            assert source.post(message("gpu-1"), token=token and token.encode().decode("latin-1"))[0] == 401
        for token in ("old", "new"):
            assert source.post(message("gpu-1"), token=token)[0] == 200
        assert source.events.get(timeout=10)["inbox_ids"]
        assert source.post(b"{", token="new")[0] == 400
        assert source.post(b"[" * 200_000, token="wrong")[0] == 401
        assert source.request("GET", "/alerts", token="new")[0] == 405
        assert source.metric('gpuops_trigger_refused_total{why="token"}') == 7
    assert "new" not in source.log.read_text()


def test_a_message_that_is_refused_is_told_of(tmp_path, url, ledger):
    """It may have held news: a reconcile, not with every attempt, and one word to people."""
    with Source(tmp_path, url, max_body_bytes=2048).running() as source:
        assert [source.post(b"x" * 4096)[0] for _attempt in range(3)] == [413] * 3
        assert source.events.get(timeout=10)["reconcile"] == "too_large"
        assert source.post({"version": "5", "alerts": []})[0] == 400
        assert source.events.get(timeout=10)["reconcile"] == "not_json"
    told = [(one["topic"], one["payload"]["why"]) for one in ledger.overview()["unsent"]]
    assert set(told) == {("message_refused", "too_large"), ("message_refused", "not_json")}


def test_a_quiet_source_looks_again(source, ledger):
    """A commit whose answer was lost, or another source's row, is handed on without a message."""
    [row] = ledger.keep([(parcel, "elsewhere") for parcel in parcels(json.dumps(message("gpu-1")).encode())])
    assert source.handed_on(1, seconds=60) == [row.inbox_id]


def test_tokens_in_the_clear_are_warned_of(source, tmp_path, url):
    """Where another machine may post them; not here, where the source has loopback alone."""
    assert "unencrypted" not in source.log.read_text()
    elsewhere = Source(tmp_path, url, host="0.0.0.0")
    elsewhere.log = tmp_path / "elsewhere.log"
    with elsewhere.running():
        assert "tokens come unencrypted to 0.0.0.0" in elsewhere.log.read_text()
    assert TOKEN not in elsewhere.log.read_text()


def test_tls(tmp_path, url):
    """With a cafile, only who has a certificate of that authority comes in."""
    key, cert = tmp_path / "tls.key", tmp_path / "tls.crt"
    certificate.write(key, cert)
    stranger = ssl.create_default_context(cafile=str(cert))
    known = ssl.create_default_context(cafile=str(cert))
    known.load_cert_chain(cert, key)
    for more, clients in (({}, [(stranger, True)]), ({"cafile": str(cert)}, [(known, True), (stranger, False)])):
        with Source(tmp_path, url, certfile=str(cert), keyfile=str(key), **more).running() as source:
            for client, comes_in in clients:
                if comes_in:
                    assert source.post(message("gpu-1"), tls=client)[0] == 200
                else:
                    with pytest.raises(OSError):
                        source.post(message("gpu-1"), tls=client)


def test_wrong_arguments_are_said(tmp_path, url):
    source = Source(tmp_path, url, hots="0.0.0.0")
    with pytest.raises(AssertionError, match="no argument hots"), source.running():
        pass
    assert TOKEN not in source.log.read_text()

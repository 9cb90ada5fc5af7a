# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Clients that are slow, broken or hostile: each is answered or closed, and none of them is in another's way."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from loop import REPOSITORY
from trigger import TOKEN, Source

CLIENT_SECONDS = 1.0
EMPTY = b'{"version": "4", "alerts": []}'


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source")
    with Source(folder, f"sqlite:///{folder}/ledger.db", client_seconds=CLIENT_SECONDS).running() as running:
        yield running


def test_only_what_is_documented(source):
    """Messages built from the description, right and wrong ones: no 500, no other status or content than it names, none without a token."""
    command = [Path(sys.executable).parent / "schemathesis", "run", REPOSITORY / "docs" / "trigger.openapi.yml"]
    command += ["--url", f"http://127.0.0.1:{source.args['port']}", "--header", f"Authorization: Bearer {TOKEN}"]
    command += ["--checks", "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,ignored_auth"]
    command += ["--phases", "coverage,fuzzing", "--max-examples", "50", "--generation-deterministic"]
    command += ["--request-timeout", "20", "--no-color"]
    ran = subprocess.run([*map(str, command)], cwd=source.log.parent, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert source.metric("gpuops_trigger_messages_total") > 10


def head(length, *more):
    lines = ["POST /alerts HTTP/1.1", "Host: x", f"Authorization: Bearer {TOKEN}", f"Content-Length: {length}", *more]
    return "\r\n".join([*lines, "", ""]).encode()


CHUNKED = head(0, "Transfer-Encoding: chunked").replace(b"Content-Length: 0\r\n", b"")
GOOD = head(len(EMPTY)) + EMPTY


@pytest.mark.parametrize(
    ("sent", "statuses"),
    [
        pytest.param(b"POST /alerts HT", [], id="half a request line"),
        pytest.param(GOOD[:60], [], id="half a head"),
        pytest.param(head(100) + EMPTY, [503], id="half a body"),
        pytest.param(head(5) + EMPTY, [400], id="more than was said"),
        pytest.param(head(-5) + EMPTY, [400], id="a negative length"),
        pytest.param(head(5, "Content-Length: 6") + EMPTY, [400], id="two lengths"),
        pytest.param(head(5, "Transfer-Encoding: chunked") + b"2\r\n{}\r\n0\r\n\r\n", [400], id="a length and chunks"),
        pytest.param(CHUNKED + b"%x\r\n%s\r\n0\r\n\r\n" % (len(EMPTY), EMPTY), [200], id="chunks"),
        pytest.param(CHUNKED + b"zz\r\n{}\r\n0\r\n\r\n", [400], id="a wrong chunk"),
        pytest.param(CHUNKED + b"2\r\n{}\r\n", [503], id="chunks without end"),
        pytest.param(head(5, "Content-Encoding: gzip") + b"abcde", [400], id="what is no gzip"),
        pytest.param(head(len(EMPTY), "Expect: 100-continue") + EMPTY, [100, 200], id="one that asks first"),
        pytest.param(GOOD * 5, [200] * 5, id="pipelined"),
        pytest.param(b"GET /healthz\r\n", [], id="HTTP/0.9"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01" + b"\xff" * 200 + b"\r\n\r\n", [400], id="TLS"),
        pytest.param(GOOD.replace(b"Host", b"X\x00"), [400], id="a NUL in a header"),
        pytest.param(GOOD.replace(b"Host: ", b"Host: " + b"x" * 20_000), [400], id="a header of 20 KB"),
        pytest.param(GOOD.replace(b"Bearer", b"Bearer \xff\xfe"), [401], id="a token that is not UTF-8"),
    ],
)
def test_answered_or_closed(source, sent, statuses):
    with socket.create_connection(("127.0.0.1", source.args["port"]), 20) as client:
        client.sendall(sent)
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while some := client.recv(65536):
                answer += some
    assert [int(status) for status in re.findall(rb"HTTP/1.[01] (\d+) ", answer)] == statuses
    assert source.post(EMPTY)[0] == 200
    assert TOKEN not in source.log.read_text()


def test_slow_clients_hold_nobody_back(source):
    """A hundred silent ones, and one that sends a byte now and then: others are answered at once, and all of these are closed."""
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", source.args["port"]), 20)) for _number in range(101)]
        slow = silent.pop()
        began = time.monotonic()
        answered = []
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for byte in head(100):
                slow.sendall(bytes([byte]))
                time.sleep(0.2)
                asked = time.monotonic()
                assert source.post(EMPTY)[0] == 200
                answered.append(time.monotonic() - asked)
        assert CLIENT_SECONDS <= time.monotonic() - began < 15
        assert max(answered) < 5
        assert {client.recv(1) for client in silent} == {b""}

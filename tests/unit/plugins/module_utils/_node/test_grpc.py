# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What servers answer that do not behave. One that does is in tests/integration/node/test_pod_resources.py."""

from __future__ import annotations

import contextlib
import socket
import threading

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._errors import MissingLibrary
from ansible_collections.gpuops.remediation.plugins.module_utils._node import grpc
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import StreamEnded

OK = ((":status", "200"), ("content-type", "application/grpc"))
DONE = (("grpc-status", "0"),)


@pytest.fixture
def server(tmp_path):
    """Plays `say(connection, stream)` of HTTP/2, or bytes, to one caller; returns the socket's path, which is too long for an address."""
    path = tmp_path / ("long" * 30) / "kubelet.sock"
    path.parent.mkdir()
    threads = []

    def start(say):
        listener = socket.socket(socket.AF_UNIX)
        short = tmp_path / "s"
        listener.bind(str(short))
        path.symlink_to(short)
        listener.listen()

        def serve():
            with listener, listener.accept()[0] as client:
                if isinstance(say, bytes):
                    client.sendall(say)
                else:
                    speak(client)
                with contextlib.suppress(OSError):  # who has given up has closed
                    client.shutdown(socket.SHUT_WR)
                    while client.recv(1 << 16):
                        pass

        def speak(client):
            http = H2Connection(H2Configuration(client_side=False))
            http.initiate_connection()
            while not any(isinstance(event, StreamEnded) for event in http.receive_data(client.recv(1 << 16))):
                client.sendall(http.data_to_send())
            say(http, 1)
            with contextlib.suppress(OSError):
                client.sendall(http.data_to_send())

        threads.append(threading.Thread(target=serve))
        threads[-1].start()
        return str(path)

    yield start
    for thread in threads:
        thread.join(10)


def answer(*parts, headers=OK, trailers=DONE):
    def say(http, stream):
        http.send_headers(stream, headers)
        for part in parts:
            http.send_data(stream, part)
        http.send_headers(stream, trailers, end_stream=True)

    return say


def test_an_answer_in_pieces(server):
    assert grpc.call(server(answer(b"\0\0\0\0", b"\2h", b"i")), "v1.Service/Method", b"", 5) == b"hi"


@pytest.mark.parametrize(
    ("say", "why"),
    [
        (
            answer(trailers=[("grpc-status", "8"), ("grpc-message", "rejected by rate%20limit")]),
            "RESOURCE_EXHAUSTED: rejected by rate limit",
        ),
        (answer(trailers=[("grpc-status", "99")]), "99"),
        (answer(trailers=[("x", "y")]), "no gRPC server: HTTP status 200"),
        (answer(), "an answer without a message"),
        (answer(b"\1\0\0\0\1a"), "compressed"),
        (answer(b"\0\0\0\0\1ab"), "not one"),
        (lambda http, stream: http.reset_stream(stream, 2), "broke off the call: HTTP/2 error 2"),
        (lambda http, stream: http.close_connection(1), "broke off the call: HTTP/2 error 1"),
        (lambda http, stream: None, "closed the connection before it had answered"),
        (b"\0\0\1\0\0\0\0\0\0x", "does not speak HTTP/2"),
    ],
)
def test_no_answer(server, say, why):
    with pytest.raises(grpc.GrpcError, match=why):
        grpc.call(server(say), "v1.Service/Method", b"", 5)


def test_too_much(server, monkeypatch):
    monkeypatch.setattr(grpc, "LIMIT_BYTES", 6)
    with pytest.raises(grpc.GrpcError, match="more than 6 bytes"):
        grpc.call(server(answer(b"\0\0\0\0\2hi")), "v1.Service/Method", b"", 5)


def test_who_says_nothing_is_not_waited_for(server):
    hang = threading.Event()
    try:
        with pytest.raises(grpc.GrpcError, match=r"has not answered within 0\.2 s"):
            grpc.call(server(lambda http, stream: hang.wait(10)), "v1.Service/Method", b"", 0.2)
    finally:
        hang.set()


def test_nobody_is_there(tmp_path):
    with pytest.raises(grpc.GrpcError, match="No such file"):
        grpc.call(str(tmp_path / "kubelet.sock"), "v1.Service/Method", b"", 1)


def test_without_the_library(monkeypatch):
    monkeypatch.setattr(grpc, "IMPORT_ERROR", "Traceback: no h2")
    with pytest.raises(MissingLibrary, match="h2 is not installed"):
        grpc.call("/nowhere", "v1.Service/Method", b"", 1)

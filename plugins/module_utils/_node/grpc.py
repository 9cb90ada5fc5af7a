# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""One call of gRPC over a Unix socket: one request, one answer. HTTP/2 is the library h2's."""

from __future__ import annotations

import os
import socket
import struct
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from ansible_collections.gpuops.remediation.plugins.module_utils._errors import MissingLibrary, RemediationError

try:
    from h2.config import H2Configuration
    from h2.connection import H2Connection
    from h2.events import ConnectionTerminated, DataReceived, ResponseReceived, StreamEnded, StreamReset, TrailersReceived
    from h2.exceptions import ProtocolError

    IMPORT_ERROR = ""
except (ImportError, AttributeError):  # the latter from an h2 that is older than its Python
    IMPORT_ERROR = traceback.format_exc()

LIMIT_BYTES = 64 << 20  # of an answer
_PREFIX = struct.Struct(">BI")  # of each message: whether it is compressed, and its length
_CODES = (
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS",
    "UNAUTHENTICATED",
)  # fmt: skip


class GrpcError(RemediationError):
    """There is no answer; `code` is the server's, where it gave one."""

    kind = "grpc_error"

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


def call(path: str, method: str, request: bytes, timeout_seconds: float) -> bytes:
    """The answer of `method` (`package.Service/Method`) at the socket `path`."""
    if IMPORT_ERROR:
        raise MissingLibrary("the Python library h2 is not installed", exception=IMPORT_ERROR)
    until = time.monotonic() + timeout_seconds
    try:
        with _connected(path, until) as connection:
            return _Call(connection, until).answer(method, request, timeout_seconds)
    except socket.timeout:
        raise GrpcError(f"{path} has not answered within {timeout_seconds:g} s") from None
    except OSError as error:
        raise GrpcError(f"{path}: {error.strerror}") from error
    except ProtocolError as error:
        raise GrpcError(f"{path} does not speak HTTP/2: {error}") from error


@contextmanager
def _connected(path: str, until: float) -> Iterator[socket.socket]:
    """By the folder's descriptor, since a socket's address has room for 107 bytes only."""
    folder = os.open(Path(path).parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(max(0.001, until - time.monotonic()))
            connection.connect(f"/proc/self/fd/{folder}/{Path(path).name}")
            yield connection
    finally:
        os.close(folder)


class _Call:
    def __init__(self, connection: socket.socket, until: float) -> None:
        self._socket, self._until = connection, until
        self._http = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self._headers: dict[str, str] = {}
        self._body = b""

    def answer(self, method: str, request: bytes, timeout_seconds: float) -> bytes:
        self._http.initiate_connection()
        stream = self._http.get_next_available_stream_id()
        self._http.send_headers(stream, [
            (":method", "POST"), (":scheme", "http"), (":authority", "localhost"), (":path", f"/{method}"),
            ("te", "trailers"), ("content-type", "application/grpc"), ("grpc-timeout", f"{max(1, int(timeout_seconds * 1000))}m"),
        ])  # fmt: skip
        self._http.send_data(stream, _PREFIX.pack(0, len(request)) + request, end_stream=True)
        while not self._ended():
            pass
        return self._message(method)

    def _ended(self) -> bool:
        """Whether that was all. Sends what is due, and takes what comes."""
        self._send()
        self._socket.settimeout(self._left())
        data = self._socket.recv(1 << 16)
        if not data:
            raise GrpcError("the server closed the connection before it had answered")
        ended = False
        for event in self._http.receive_data(data):
            ended = self._take(event) or ended
        return ended

    def _take(self, event: Any) -> bool:
        if isinstance(event, (ResponseReceived, TrailersReceived)):
            self._headers.update((str(name), str(value)) for name, value in event.headers or ())
        elif isinstance(event, DataReceived):
            self._body += event.data
            self._http.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            if len(self._body) > LIMIT_BYTES:
                raise GrpcError(f"the answer has more than {LIMIT_BYTES} bytes")
        elif isinstance(event, (StreamReset, ConnectionTerminated)):
            raise GrpcError(f"the server broke off the call: HTTP/2 error {int(event.error_code or 0)}")
        return isinstance(event, StreamEnded)

    def _send(self) -> None:
        data = self._http.data_to_send()
        if data:
            self._socket.settimeout(self._left())
            self._socket.sendall(data)

    def _left(self) -> float:
        left = self._until - time.monotonic()
        if left <= 0:
            raise socket.timeout
        return left

    def _message(self, method: str) -> bytes:
        status = self._headers.get("grpc-status", "")
        if not status.isdecimal():
            raise GrpcError(f"this is no gRPC server: HTTP status {self._headers.get(':status')}")
        if int(status):
            code = _CODES[int(status)] if int(status) < len(_CODES) else status
            raise GrpcError(f"{method}: {code}: {unquote(self._headers.get('grpc-message', ''))}", code)
        if len(self._body) < _PREFIX.size:
            raise GrpcError(f"{method}: an answer without a message")
        compressed, length = _PREFIX.unpack_from(self._body)
        if compressed or len(self._body) != _PREFIX.size + length:
            raise GrpcError(f"{method}: a message that is compressed, or not one")
        return self._body[_PREFIX.size :]

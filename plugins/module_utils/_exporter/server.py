# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Serves a page that is ready before it is asked for: a scrape waits for no reading."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Callable, Optional

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_MOST_CONNECTIONS = 16
_CLIENT_SECONDS = 10.0  # for all that a client says and hears, however slowly


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(
        self,
        host: str,
        port: int,
        page: Callable[[], bytes],
        context: Optional[ssl.SSLContext] = None,
        client_seconds: float = _CLIENT_SECONDS,
    ) -> None:
        self.page = page
        self.context = context
        self.client_seconds = client_seconds
        self._ends: dict[socket.socket, float] = {}  # of every connection, by a socket of ours: TLS takes the first one over
        self._room = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        self.address_family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Without asking a name server who we are."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            with request.dup() as line:
                self._ends[line] = time.monotonic() + self.client_seconds
                try:
                    super().process_request_thread(request, client_address)
                finally:
                    del self._ends[line]
        finally:
            self._room.release()

    def service_actions(self) -> None:
        """Twice a second, between connections: who is late is cut off, since each byte would give a client more time."""
        now = time.monotonic()
        for line, end in list(self._ends.items()):
            if now >= end:
                with contextlib.suppress(OSError):  # it has just ended
                    line.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away, or speaks no TLS, is its own affair."""


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def setup(self) -> None:
        self.request.settimeout(self.server.client_seconds)
        if self.server.context:  # in this client's thread, so that one who never shakes hands holds up nobody
            self.request = self.server.context.wrap_socket(self.request, server_side=True)
        super().setup()

    def finish(self) -> None:
        super().finish()
        if self.server.context:
            self.request.close()

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404)
            return
        body = self.server.page()
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """A scrape a second is no news."""


def tls(certfile: str, keyfile: str, cafile: str) -> Optional[ssl.SSLContext]:
    """None without a certificate. With an authority, clients need a certificate of it."""
    if not certfile:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    with _named(certfile, keyfile):
        context.load_cert_chain(certfile, keyfile or None)
    if cafile:
        with _named(cafile):
            context.load_verify_locations(cafile)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


@contextlib.contextmanager
def _named(*files: str) -> Iterator[None]:
    """OpenSSL's errors name no file."""
    try:
        yield
    except OSError as error:
        raise OSError("%s: %s" % (", ".join(filter(None, files)), error)) from error

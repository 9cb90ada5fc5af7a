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
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Callable, Optional

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_MOST_CONNECTIONS = 16
_CLIENT_SECONDS = 10.0  # for all that a client has to say


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, host: str, port: int, page: Callable[[], bytes], context: Optional[ssl.SSLContext] = None) -> None:
        self.page = page
        self.context = context
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
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away, or speaks no TLS, is its own affair."""


class _Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = _CLIENT_SECONDS

    def setup(self) -> None:
        if self.server.context:  # in this client's thread, so that one who never shakes hands holds up nobody
            self.request.settimeout(_CLIENT_SECONDS)
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
    context.load_cert_chain(certfile, keyfile or None)
    if cafile:
        context.load_verify_locations(cafile)
        context.verify_mode = ssl.CERT_REQUIRED
    return context

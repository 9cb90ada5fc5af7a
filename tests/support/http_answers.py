# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""An HTTP server that gives the answers it is told to."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


@dataclass
class Answers:
    """`by_path`: what is answered, as JSON, or as it is where it is text. `asked`: each request's path, parameters and headers."""

    url: str = ""
    by_path: dict[str, Any] = field(default_factory=dict)
    status: int = 200
    location: str = ""
    pause_seconds: float = 0.0  # between the bytes of an answer
    asked: list[tuple[str, dict[str, list[str]], dict[str, str]]] = field(default_factory=list)


@contextmanager
def answering() -> Iterator[Answers]:
    answers = Answers()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            answers.asked.append((parts.path, parse_qs(parts.query), dict(self.headers)))
            answer = answers.by_path.get(parts.path, "not here")
            body = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
            self.send_response(answers.status if parts.path in answers.by_path else 404)
            if answers.location:
                self.send_header("Location", answers.location)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            try:
                if not answers.pause_seconds:
                    self.wfile.write(body)
                    return
                for byte in body:
                    self.wfile.write(bytes([byte]))
                    self.wfile.flush()
                    time.sleep(answers.pause_seconds)
            except OSError:  # whoever asked has gone
                pass

        def log_message(self, *_arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    answers.url = "http://127.0.0.1:%d" % server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield answers
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

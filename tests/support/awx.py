# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""As much of AWX's API as ansible-rulebook asks of one to run a job template; each job succeeds when it is looked at."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

TOKEN = "a token of the tests for AWX"


class Awx:
    """launches: the template's name and the body of each launch, in their order."""

    def __init__(self, *templates: str, organization: str = "Default") -> None:
        self.templates = dict(enumerate(templates, 1))
        self.organization = organization
        self.launches: list[tuple[str, Any]] = []
        self.ended: set[int] = set()  # jobs whose end was asked for
        self.unknown: list[str] = []  # requests that it has no answer for
        self.url = ""

    @contextlib.contextmanager
    def running(self) -> Iterator[Awx]:
        awx = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(awx._get(*_split(self.path)))

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self._answer(awx._launch(self.path, json.loads(body)))

            def _answer(self, content: Any) -> None:
                known = self.headers.get("Authorization") == f"Bearer {TOKEN}"
                if content is None:
                    awx.unknown.append(self.path)
                body = json.dumps(content).encode()
                self.send_response(401 if not known else 404 if content is None else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments: Any) -> None:
                """Quiet."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            thread.join()
            server.server_close()

    def _get(self, path: str, query: dict[str, str]) -> Any:
        if path == "/api/v2/config/":
            return {"version": "24.6.1"}
        if path == "/api/v2/unified_job_templates/":
            return _page([self._template(number) for number, name in self.templates.items() if name == query["name"]])
        if path == "/api/v2/jobs/":
            numbers = {int(number) for number in query["id__in"].split(",")}
            self.ended |= numbers
            return _page([self._job(number) for number in numbers])
        return None

    def _launch(self, path: str, body: Any) -> Any:
        for number, name in self.templates.items():
            if path == f"/api/v2/job_templates/{number}/launch/":
                self.launches.append((name, body))
                return self._job(len(self.launches))
        return None

    def _template(self, number: int) -> dict[str, Any]:
        asks = dict.fromkeys(("ask_limit_on_launch", "ask_inventory_on_launch", "ask_variables_on_launch", "ask_labels_on_launch"), False)
        return {
            **asks,
            "id": number,
            "type": "job_template",
            "name": self.templates[number],
            "summary_fields": {"organization": {"name": self.organization}},
            "related": {"launch": f"/api/v2/job_templates/{number}/launch/"},
        }

    def _job(self, number: int) -> dict[str, Any]:
        return {
            "id": number,
            "type": "job",
            "url": f"/api/v2/jobs/{number}/",
            "status": "successful",
            "created": "2026-11-29T20:19:40Z",
            "artifacts": {},
        }


def _split(path: str) -> tuple[str, dict[str, str]]:
    parts = urlsplit(path)
    return parts.path, {name: values[0] for name, values in parse_qs(parts.query).items()}


def _page(results: list[Any]) -> dict[str, Any]:
    return {"count": len(results), "next": None, "results": results}

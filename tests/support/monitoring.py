# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A Prometheus and an Alertmanager of one's own: Debian's programs on loopback, each in a folder and on a free port, ended by its pid."""

from __future__ import annotations

import contextlib
import json
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cluster.objects import wait_until
from cluster.processes import Component
from ports import free_port


class Server:
    """One of the two. `component` pauses, kills and starts it again on the same port and data."""

    def __init__(self, program: str, directory: Path, port: int, *arguments: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.url = f"http://127.0.0.1:{port}"
        listen = [f"--web.listen-address=127.0.0.1:{port}", f"--web.external-url={self.url}"]
        self.component = Component(program, directory, [program, *listen, *arguments])

    @contextlib.contextmanager
    def running(self) -> Iterator[Server]:
        self.start()
        try:
            yield self
        finally:
            self.component.end()

    def start(self) -> None:
        self.component.start()
        wait_until(self._ready, f"{self.component.name} ready", 60)

    def _ready(self) -> bool:
        assert self.component.running, self.component.last_words()
        with contextlib.suppress(OSError):
            self.get("/-/ready")
            return True
        return False

    def get(self, path: str, **parameters: str) -> bytes:
        with urllib.request.urlopen(f"{self.url}{path}?{urllib.parse.urlencode(parameters)}", timeout=30) as answer:
            return bytes(answer.read())


class Prometheus(Server):
    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples of an instant query: `metric` (labels) and `value` ([time, text])."""
        return list(json.loads(self.get("/api/v1/query", query=expression))["data"]["result"])

    def firing(self, name: str = "") -> list[dict[str, Any]]:
        """Its alerts that fire: labels, annotations, activeAt."""
        alerts = json.loads(self.get("/api/v1/alerts"))["data"]["alerts"]
        return [one for one in alerts if one["state"] == "firing" and name in ("", one["labels"]["alertname"])]


class Alertmanager(Server):
    def alerts(self, name: str = "") -> list[dict[str, Any]]:
        found = json.loads(self.get("/api/v2/alerts"))
        return [one for one in found if name in ("", one["labels"]["alertname"])]


def job(name: str, port: int, *nodes: str, interval_seconds: float = 1) -> dict[str, Any]:
    """A scrape job for one process on loopback. With nodes, one target for each, as `gpusim export` serves them."""
    address = [f"127.0.0.1:{port}"]
    targets: list[dict[str, Any]] = [{"targets": address, "labels": {"node": node, "__param_node": node}} for node in nodes]
    timing = {"scrape_interval": _seconds(interval_seconds), "scrape_timeout": _seconds(interval_seconds)}
    return {"job_name": name, "honor_labels": True, **timing, "static_configs": targets or [{"targets": address}]}


@contextlib.contextmanager
def running_prometheus(
    directory: Path,
    jobs: Sequence[Mapping[str, Any]] = (),
    rules: Sequence[Path] = (),
    alertmanager_url: str = "",
    *,
    evaluation_seconds: float = 1,
) -> Iterator[Prometheus]:
    """jobs: entries of Prometheus' scrape_configs; `job` makes them. rules: files as they would lie in its rules folder."""
    config: dict[str, Any] = {
        "global": {"evaluation_interval": _seconds(evaluation_seconds)},
        "rule_files": [str(path.resolve()) for path in rules],
        "scrape_configs": [dict(each) for each in jobs],
    }
    if alertmanager_url:
        target = {"targets": [urllib.parse.urlsplit(alertmanager_url).netloc]}
        config["alerting"] = {"alertmanagers": [{"static_configs": [target]}]}
    storage = f"--storage.tsdb.path={directory / 'data'}"
    # Alertmanager takes its alerts for resolved four resends after its death, in place of four minutes.
    lively = ("--web.enable-lifecycle", "--rules.alert.resend-delay=1s")
    with _server(Prometheus, "prometheus", directory, config, storage, *lively) as server:
        yield server


@contextlib.contextmanager
def running_alertmanager(
    directory: Path,
    webhook_url: str,
    token: str,
    *,
    matchers: Sequence[str] = (),
    group_by: Sequence[str] = ("node",),
    group_wait_seconds: float = 1,
    group_interval_seconds: float = 10,
    repeat_interval_seconds: float = 600,
) -> Iterator[Alertmanager]:
    """Alerts that match go to the webhook, the others to nobody."""
    authorization = {"type": "Bearer", "credentials": token}
    receiver = {"url": webhook_url, "send_resolved": True, "http_config": {"authorization": authorization}}
    timing = {
        "group_wait": _seconds(group_wait_seconds),
        "group_interval": _seconds(group_interval_seconds),
        "repeat_interval": _seconds(repeat_interval_seconds),
    }
    config = {
        "receivers": [{"name": "nobody"}, {"name": "webhook", "webhook_configs": [receiver]}],
        "route": {
            "receiver": "nobody",
            "routes": [{"receiver": "webhook", "matchers": list(matchers), "group_by": list(group_by), **timing}],
        },
    }
    storage = f"--storage.path={directory / 'data'}"
    with _server(Alertmanager, "prometheus-alertmanager", directory, config, storage, "--cluster.listen-address=") as server:
        yield server


@contextlib.contextmanager
def _server(kind: Any, program: str, directory: Path, config: Mapping[str, Any], *arguments: str) -> Iterator[Any]:
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / "config.yml"
    file.write_text(json.dumps(config))
    with kind(program, directory, free_port(), f"--config.file={file}", *arguments).running() as server:
        yield server


def _seconds(seconds: float) -> str:
    return f"{round(seconds * 1000)}ms"

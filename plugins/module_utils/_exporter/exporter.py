# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""The exporter of a node: reads NVML and what root's reader wrote, again and again, and has a page ready."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils import _names as names
from ansible_collections.gpuops.remediation.plugins.module_utils._exporter import handover, page, requests, server
from ansible_collections.gpuops.remediation.plugins.module_utils._exporter.config import Config
from ansible_collections.gpuops.remediation.plugins.module_utils._exporter.samples import STALE_SECONDS, Known, Sample, samples
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu import info, nvml
from ansible_collections.gpuops.remediation.plugins.module_utils._node.statedir import StateDir
from ansible_collections.gpuops.remediation.plugins.module_utils._node.watchdog import Answer, Watchdog

_PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")


class Source(NamedTuple):
    """`told_seconds`: when it last told everything. `up` is what its last reading says, if there was one lately."""

    up: bool
    told_seconds: float


class _Page(NamedTuple):
    text: bytes
    made_seconds: float
    sources: Mapping[str, Source]


class Exporter:
    def __init__(self, config: Config) -> None:
        self._config = config
        self._node = config.paths
        self._watchdog = Watchdog(StateDir(config.watch_dir), config.nvml_timeout_seconds)
        self._began = time.time()
        self._nvml = Source(False, self._began)
        self._page: Optional[_Page] = None

    def read(self) -> None:
        """Makes the next page. NVML that hangs takes the watchdog's time, and what it told until then counts."""
        node = self._node
        _bury()
        answers, abandoned = self._watchdog.collect(
            {"nvml": partial(nvml.collect, node.nvml_library, [], None), "driver": partial(info.driver_files, node)}
        )
        now = time.time()
        up = answers["nvml"].why is None
        self._nvml = Source(up, now if up else self._nvml.told_seconds)
        state = handover.read(Path(self._config.state_file), node.proc.boot_id())
        if state:
            state.setdefault("probes", requests.NONE)  # an earlier version's
        _told, gpus = info.join({**answers, "processes": Answer(why="root's reader asks")}, state["gpus"] if state else [], node.dev_root)
        known = Known(
            node=self._config.node_name,
            gpus=gpus,
            nvml_up=up,
            state=state,
            state_age_seconds=now - state["written_seconds"] if state else 0.0,
            abandoned=len(abandoned) + (state["abandoned"] if state else 0),
            costs=_costs(state),
        )
        self._page = _Page(page.render(samples(known, self._config.max_owners)), time.time(), self._sources(state))

    def _sources(self, state: Optional[Mapping[str, Any]]) -> dict[str, Source]:
        if state is None:
            return {"nvml": self._nvml, "state": Source(False, self._began)}
        told = {name: Source(one["why"] is None, one["told_seconds"] or self._began) for name, one in state["sources"].items()}
        return {"nvml": self._nvml, "state": Source(True, state["written_seconds"]), **told}

    def text(self) -> bytes:
        """The page, with ages as they are now."""
        made = self._page
        if made is None:
            return b""
        node, now = self._config.node_name, time.time()
        ages = [Sample(names.METRIC_PAGE_AGE, (node,), max(0.0, now - made.made_seconds))]
        for name, source in made.sources.items():
            age_seconds = max(0.0, now - source.told_seconds)
            ages.append(Sample(names.METRIC_SOURCE_UP, (node, name), source.up and age_seconds < STALE_SECONDS))
            ages.append(Sample(names.METRIC_SOURCE_AGE, (node, name), age_seconds))
        return made.text + page.render(ages)


def _bury() -> None:
    """Readers that were left, and have ended since: nobody else waits for them here."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _costs(state: Optional[Mapping[str, Any]]) -> dict[str, tuple[float, float]]:
    own = os.times()
    resident_pages = int(Path("/proc/self/statm").read_text().split()[1])
    costs = {"exporter": (sum(own[:4]), float(resident_pages * _PAGE_SIZE))}
    if state:
        costs["state"] = (state["cost"]["cpu_seconds"], state["cost"]["resident_bytes"])
    return costs


def serve(config: Config, tell: Callable[[str], None]) -> None:
    """Until a signal ends it. Readings are made here, in the thread that forks; clients have threads of their own."""
    exporter = Exporter(config)
    exporter.read()
    with server.Server(config.host, config.port, exporter.text, server.tls(config.certfile, config.keyfile, config.cafile)) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        tell(f"ready: port {listening.server_address[1]}")
        while True:
            time.sleep(config.interval_seconds)
            exporter.read()

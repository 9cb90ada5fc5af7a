# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the cases are played, each place with everything of its own, so that any number of them are side by side; and what came of each case."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from signal import SIGKILL, SIGQUIT, SIGTERM
from typing import NamedTuple

from cluster import Cluster
from crash import BOUNDARIES, FENCED, IN_PROCESSES, TAINTED, TARGETS, Case, Crashes
from fence_storm import killed_amid, storm_names
from fleet import Fleet
from ledgers import fresh_schema
from loop import Controller
from postgresql import postgresql_server
from trigger import Rulebook

HOW = (SIGKILL, SIGTERM)
NODES, MORE = 200, 20
STORM = f"the fence of {NODES} nodes, half done, {MORE} more alerts arriving"


class Outcome(NamedTuple):
    case: Case
    fault: str
    note: str = ""


def bare(folder: Path, cases: Sequence[Case]) -> list[Outcome]:
    """With its ledger in SQLite."""
    with Controller(folder / "controller") as controller:
        controller.ledger(write=True).set_mode("act", "crash matrix", "it has to act")
        with Crashes(controller).running() as crashes:
            return played(crashes, cases)


def kubernetes(folder: Path, cases: Sequence[Case]) -> list[Outcome]:
    """With its ledger in PostgreSQL."""
    with (
        Cluster(folder / "cluster") as cluster,
        postgresql_server() as server,
        Fleet(folder / "controller", cluster, ledger_url=fresh_schema(server.url)) as fleet,
    ):
        fleet.set("act", nodes=1000)
        with Crashes(fleet, server).running() as crashes:
            return played(crashes, cases)


def played(crashes: Crashes, cases: Sequence[Case]) -> list[Outcome]:
    for case in cases:
        crashes.crash(case)
    crashes.reconcile()
    faults, notes = crashes.faults(), crashes.notes()
    return [Outcome(case, faults.get(node, ""), notes.get(node, "")) for node, case in crashes.cases.items()]


def storm_sqlite(folder: Path, cases: Sequence[Case]) -> list[Outcome]:
    return [storm(folder, case, f"sqlite:///{folder}/ledger.db") for case in cases]


def storm_postgresql(folder: Path, cases: Sequence[Case]) -> list[Outcome]:
    with postgresql_server() as server:
        return [storm(folder, case, fresh_schema(server.url)) for case in cases]


def storm(folder: Path, case: Case, ledger_url: str) -> Outcome:
    """The nodes are the API's alone, and silent: a run only fences what the source, on a machine that is too busy, has not."""
    with Cluster(folder / "cluster") as cluster, Fleet(folder / "controller", cluster, ledger_url=ledger_url) as fleet:
        silent = {"ansible_connection": "ssh", "ansible_ssh_executable": "/bin/false"}
        fleet.host_variables.update(dict.fromkeys(storm_names(NODES + MORE), silent))
        fences = {"gpuops_fence_in": "source", "gpuops_kubeconfig": str(cluster.kubeconfig), "gpuops_trigger_window_seconds": 60}
        try:
            fenced = killed_amid(cluster, Rulebook(fleet, **fences), ledger_url, NODES, MORE)
        except (AssertionError, TimeoutError) as error:
            return Outcome(case, str(error) or "an alert is lost, or a node not fenced exactly once")
        return Outcome(case, "" if 0 < fenced < NODES else "it was not killed amid them", f"{fenced} fenced when it was killed")


def cases_on_nodes(place: str) -> Iterator[Case]:
    """All of them, one boundary after the other."""
    on_kubernetes = place == "kubernetes"
    for boundary in BOUNDARIES:
        if boundary in IN_PROCESSES and on_kubernetes:
            continue
        yield from cases_at(boundary, on_kubernetes)
        if boundary == "isolate" and on_kubernetes:
            yield from cases_at(TAINTED, True)
    if on_kubernetes:  # where no run has begun
        yield from (Case("rulebook", how, FENCED) for how in HOW)
        yield Case("postgresql", SIGQUIT, FENCED)


def cases_at(boundary: str, with_postgresql: bool) -> Iterator[Case]:
    for who in TARGETS:
        if who != "postgresql":
            yield from (Case(who, how, boundary) for how in HOW)
        elif with_postgresql:
            yield Case(who, SIGQUIT, boundary)


def all_cases(place: str) -> list[Case]:
    return [Case("group", SIGKILL, STORM)] if place.startswith("storm") else list(cases_on_nodes(place))


Play = Callable[[Path, Sequence[Case]], list[Outcome]]
PLACES: dict[str, tuple[str, Play]] = {
    "bare": ("bare hosts, SQLite", bare),
    "kubernetes": ("real control plane, PostgreSQL", kubernetes),
    "storm-sqlite": ("many nodes fenced at once, SQLite", storm_sqlite),
    "storm-postgresql": ("many nodes fenced at once, PostgreSQL", storm_postgresql),
}

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A ledger for a test: a fresh SQLite file, or a fresh schema of the PostgreSQL database that GPUOPS_TEST_LEDGER_URL names."""

from __future__ import annotations

import itertools
import os
from datetime import datetime, timedelta, timezone

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.alerts import Alert
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.requests import Place, Want, from_alert, from_operator
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.store import Ledger

NOON = datetime(2026, 11, 29, 12, tzinfo=timezone.utc)
GPU = "GPU-5f0c1a52-6a8d-4f0e-9f0e-3c1d4e8a2b11"
OTHER_GPU = "GPU-00000000-6a8d-4f0e-9f0e-3c1d4e8a2b11"
POSTGRESQL = os.environ.get("GPUOPS_TEST_LEDGER_URL")
_schemas = itertools.count()


class Clock:
    """Stands still until told."""

    def __init__(self, now=NOON):
        self.now = now

    def __call__(self):
        return self.now

    def on(self, seconds):
        self.now += timedelta(seconds=seconds)


def fresh_schema(server: str) -> str:
    """The URL of a new schema in the database at `server`."""
    import psycopg

    name = f"t{os.getpid()}_{next(_schemas)}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {name}")
    return f"{server}?options=-csearch_path%3D{name}"


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def url(tmp_path):
    return fresh_schema(POSTGRESQL) if POSTGRESQL else f"sqlite:///{tmp_path}/state/ledger.db"


@pytest.fixture
def ledger(url, clock):
    opened = Ledger.open(url, clock=clock)
    yield opened
    opened.close()


def alert(starts=NOON, node="gpu-1", fingerprint="56483371e3f4f688", status="firing", **facts) -> Alert:
    return Alert(fingerprint, status, starts, node, **facts)


def wanted(fired: Alert, received=NOON, uid="uid-1", **more) -> Want:
    return from_alert(Place(fired.node, uid, "host-1", **more), fired, received)


def by_hand(gpu=None, node="gpu-1", uid="uid-1", now=NOON, **more) -> Want:
    return from_operator(Place(node, uid, "host-1", **more), gpu, now)


def opened(ledger, want=None):
    """A new incident's id."""
    opening = ledger.open_incident(want or by_hand(now=ledger.now()))
    assert opening.how == "opened"
    return opening.record["id"]


def verdict(**more):
    return {"gpu_uuid": GPU, "domain": "memory", "scope": "gpu", "action": "quarantine_gpu", "reasons": ["row remapping failed"], **more}


def diagnosed(ledger, incident_id, **more):
    """The incident after a diagnosis."""
    ledger.start_stage(incident_id, "diagnose")
    return ledger.finish_stage(incident_id, "diagnose", "ok", {"verdict": verdict(**more)})[1]

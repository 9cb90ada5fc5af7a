# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from http_answers import answering
from loop import Controller
from monitoring import running_alertmanager
from ports import free_port


@pytest.fixture
def controller(tmp_path):
    with Controller(tmp_path / "controller") as made:
        made.ledger(write=True).set_mode("act", "tests", "the test needs it")
        made.variables["gpuops_alertmanager_receiver"] = "webhook"
        yield made


@pytest.fixture
def alertmanager(tmp_path):
    """Its webhook leads nowhere, as if the controller were down."""
    nowhere = f"http://127.0.0.1:{free_port()}/alerts"
    with running_alertmanager(tmp_path / "alertmanager", nowhere, "t0ken", matchers=['alertname =~ "Gpu.*"']) as server:
        yield server


@pytest.fixture
def exporter():
    """What Prometheus scrapes, as text at /metrics."""
    with answering() as answers:
        yield answers

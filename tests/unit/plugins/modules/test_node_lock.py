# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.modules import node_lock
from run_module import run_module


@pytest.fixture(params=["file", "ledger"])
def place(request, tmp_path):
    return {"backend": request.param, "node": "gpu-1", "state_dir": str(tmp_path), "ledger_url": f"sqlite:///{tmp_path}/ledger.db"}


def run(place, check_mode=False, **options):
    return run_module(node_lock.main, check_mode=check_mode, **place, **options)


def test_taken_renewed_released(place):
    predicted = run(place, check_mode=True, lock_holder="a")
    assert predicted["changed"] and predicted["token"] > 0
    taken = run(place, lock_holder="a")
    assert (taken["changed"], taken["after"]) == (True, {"holder": "a", "token": taken["token"], "live": True})
    assert taken["diff"]["before"]["holder"] is None
    assert [step["action"] for step in taken["actions"]] == ["taken"]
    assert run(place, lock_holder="a", lock_token=taken["token"])["changed"] is False
    assert run(place, state="renewed", lock_holder="a", lock_token=taken["token"])["changed"] is False
    assert run(place, lock_holder="b")["error_kind"] == "lock_held"
    assert run(place, state="renewed", lock_holder="b", lock_token=taken["token"])["error_kind"] == "lock_lost"
    assert run(place, state="released", lock_holder="a", lock_token=taken["token"])["changed"] is True
    assert run(place, state="released", lock_holder="a", lock_token=taken["token"])["changed"] is False


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "missing required arguments: lock_holder"),
        ({"lock_holder": "a", "state": "renewed"}, "missing: lock_token"),
        ({"lock_holder": "a", "backend": "lease"}, "missing: node"),
        ({"lock_holder": "a", "backend": "ledger"}, "missing: node"),
    ],
)
def test_options(options, text):
    assert text in run_module(node_lock.main, **options)["msg"]


def test_no_cluster(tmp_path):
    failed = run_module(
        node_lock.main, backend="lease", node="gpu-1", lock_holder="a", kubeconfig=str(tmp_path / "none"), api_timeout_seconds=1
    )
    assert failed["failed"] and failed["error_kind"] not in ("lock_held", "lock_lost")

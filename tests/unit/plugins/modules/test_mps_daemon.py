# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.remediation.plugins.module_utils._mps.errors import HasClients
from ansible_collections.gpuops.remediation.plugins.modules import mps_daemon
from run_module import run_module

OVER = {"clients_now": 3, "clients": 2, "within_budget": False}


@pytest.fixture
def bring(monkeypatch):
    """What the module asks for, and its answer."""
    asked = []

    def answer(result):
        def work(params, check_mode):
            asked.append((params, check_mode))
            if isinstance(result, Exception):
                raise result
            return result

        monkeypatch.setattr(mps_daemon.nvml, "IMPORT_ERROR", None)
        monkeypatch.setattr(mps_daemon, "bring", work)
        return asked

    return answer


def test_too_many_for_a_budget_is_a_warning_and_no_failure(bring, monkeypatch):
    warned = []  # what becomes of one depends on whether this process is a controller's too
    monkeypatch.setattr(AnsibleModule, "warn", lambda _module, text: warned.append(text))
    asked = bring({"changed": False, "tenant": OVER})
    result = run_module(mps_daemon.main, True, device="GPU-1", tenant={"memory_budget": "8G", "clients": 2})
    assert not result.get("failed") and warned == ["3 clients share a budget that was made for 2"]
    assert asked[0][1] is True
    bring({"changed": False, "tenant": {"clients_now": 4, "clients": 5, "within_budget": True}})
    assert not run_module(mps_daemon.main, device="GPU-1").get("failed") and len(warned) == 1


def test_a_refusal_has_its_kind_and_its_details(bring):
    bring(HasClients("it has clients", clients=[8]))
    result = run_module(mps_daemon.main, device="GPU-1", state="absent")
    assert (result["failed"], result["error_kind"], result["clients"]) == (True, "has_clients", [8])


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"device": "GPU-1", "managed_by": "other"},
        {"device": "GPU-1", "memory_limit": "1G", "tenant": {"memory_budget": "1G", "clients": 1}},
        {"device": "GPU-1", "client_priority": "high"},
        {"device": "GPU-1", "compute_mode": "prohibited"},
    ],
)
def test_options_that_say_nothing_or_too_much(bring, params):
    asked = bring({"changed": False, "tenant": None})
    assert run_module(mps_daemon.main, **params)["failed"] and not asked


def test_without_nvmls_bindings(monkeypatch):
    monkeypatch.setattr(mps_daemon.nvml, "IMPORT_ERROR", "no pynvml")
    assert "nvidia-ml-py" in run_module(mps_daemon.main, device="GPU-1")["msg"]

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json

import pytest
from alerts import recorded, rewritten
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.store import Ledger
from ansible_collections.gpuops.remediation.plugins.modules import inbox_sync, incident
from http_answers import answering
from run_module import run_module

INVENTORY = {"gpu-1": {"host": "host-1", "uid": "uid-1"}}


@pytest.fixture
def alertmanager():
    with answering() as answers:
        [alert] = rewritten(recorded("firing-single"), {"node": "gpu-1"})["alerts"]
        told = {**alert, "status": {"state": "active", "silencedBy": [], "inhibitedBy": []}}
        answers.by_path["/api/v2/alerts/groups"] = [{"labels": {}, "receiver": {"name": "gpuops"}, "alerts": [told]}]
        answers.by_path["/api/v2/silences"] = []
        yield answers


@pytest.fixture
def ledger_url(tmp_path):
    return f"sqlite:///{tmp_path}/ledger.db"


def test_from_news_to_nothing_new(alertmanager, ledger_url):
    Ledger.open(ledger_url).close()
    given = {"ledger_url": ledger_url, "alertmanager_urls": [alertmanager.url]}
    predicted = run_module(inbox_sync.main, check_mode=True, **given)
    assert (predicted["changed"], predicted["inbox_ids"], len(predicted["news"])) == (True, [], 1)
    found = run_module(inbox_sync.main, **given)
    assert {**found, "inbox_ids": []} == predicted
    [(fingerprint, starts_at)] = found["diff"]["after"].items()
    assert (found["news"][0]["fingerprint"], found["news"][0]["starts_at"]) == (fingerprint, starts_at)
    again = run_module(inbox_sync.main, **given)
    assert (again["changed"], again["inbox_ids"], again["news"], again["diff"]) == (False, [], [], {"before": {}, "after": {}})

    opened = run_module(incident.main, inbox_ids=found["inbox_ids"], inventory=INVENTORY, **given)
    assert [one["node"] for one in opened["incidents"]] == ["gpu-1"] and opened["missing"] == []


def test_who_is_away_is_named_and_nothing_fails(ledger_url):
    nowhere = "http://user:pass@127.0.0.1:1"
    found = run_module(
        inbox_sync.main, ledger_url=ledger_url, alertmanager_urls=[nowhere], prometheus_url=nowhere, prometheus_token="t0ken"
    )
    assert [one["source"] for one in found["missing"]] == ["alertmanager", "prometheus"]
    assert not found.get("failed") and not found["changed"]
    assert "pass" not in str(found["missing"]) and "t0ken" not in str(found["missing"])


def test_a_silenced_alert_of_a_file(alertmanager, ledger_url, tmp_path):
    """S6, by the module that opens incidents; while it cannot ask, that alert stays left, and another one opens an incident."""
    silence = {
        "id": "1",
        "createdBy": "jane",
        "status": {"state": "active"},
        "matchers": [{"name": "node", "value": "gpu-1", "isRegex": False}],
    }
    alertmanager.by_path["/api/v2/silences"], alertmanager.by_path["/api/v2/alerts"] = [silence], []
    file = tmp_path / "alert.json"
    file.write_text(json.dumps(rewritten(recorded("firing-single"), {"node": "gpu-1"})))
    given = {"ledger_url": ledger_url, "alert_file": str(file), "inventory": INVENTORY}
    answer = run_module(incident.main, alertmanager_urls=[alertmanager.url], **given)
    assert ([one["reason"] for one in answer["ignored"]], answer["incidents"]) == (["its alert is silenced by silence 1 of jane"], [])
    answer = run_module(incident.main, alertmanager_urls=["http://127.0.0.1:1"], **given)
    assert ([one["reason"] for one in answer["ignored"]], answer["incidents"]) == (["its alert is silenced by silence 1 of jane"], [])
    file.write_text(json.dumps(rewritten(recorded("firing-single"), {"node": "gpu-1", "xid": "48"})))
    answer = run_module(incident.main, alertmanager_urls=["http://127.0.0.1:1"], **given)
    assert (len(answer["incidents"]), [one["source"] for one in answer["missing"]]) == (1, ["alertmanager"])


def test_who_names_a_node_asks_nobody(alertmanager, ledger_url):
    run_module(incident.main, ledger_url=ledger_url, node="gpu-1", inventory=INVENTORY, alertmanager_urls=[alertmanager.url])
    assert alertmanager.asked == []

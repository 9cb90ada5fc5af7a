# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.store import Ledger
from ansible_collections.gpuops.remediation.plugins.modules import incident_change
from ledgers import by_hand, opened
from run_module import run_module

TARGET = "node/gpu-1/cgroup/system.slice/train.service"


@pytest.fixture
def run(tmp_path):
    url = f"sqlite:///{tmp_path}/ledger.db"
    ledger = Ledger.open(url)
    incident_id = opened(ledger, by_hand(now=ledger.now()))

    def run(state, check_mode=False, **params):
        values = {"incident_id": incident_id, "target": TARGET, **params}
        return run_module(incident_change.main, check_mode=check_mode, ledger_url=url, state=state, **values)

    return run


@pytest.mark.parametrize(
    "state, options, status, owners",
    [
        ("intended", {"before": "thawed", "wanted": "frozen"}, "intended", 1),
        ("applied", {"after": {"frozen": 1}}, "applied", 1),
        ("disowned", {}, "applied", 0),
        ("reverted", {}, "reverted", 0),
    ],
)
def test_each_step_runs_four_times(run, state, options, status, owners):
    """S9: predicted, done, and nothing left to do."""
    steps = [
        ("intended", {"before": "thawed", "wanted": "frozen"}),
        ("applied", {"after": {"frozen": 1}}),
        ("disowned", {}),
        ("reverted", {}),
    ]
    for earlier, its_options in steps[: [step[0] for step in steps].index(state)]:
        run(earlier, **its_options)
    runs = [run(state, check_mode=check, **options) for check in (True, False, False, True)]
    assert [one["changed"] for one in runs] == [True, True, False, False]
    assert (runs[1]["change"]["status"], len(runs[1]["change"]["owners"])) == (status, owners)
    assert runs[1]["change"]["before"] == "thawed"


def test_what_is_not_there(run):
    for state in ("applied", "disowned", "reverted"):
        answer = run(state)
        answer.pop("invocation", None)  # ansible-core 2.21 leaves it out
        assert answer == {"changed": False, "change": {}, "diff": {"before": {}, "after": {}}}
    assert run("intended", incident_id="x")["error_kind"] == "unknown_incident"
    assert run("intended", check_mode=True, incident_id="predicted", wanted=1)["changed"]

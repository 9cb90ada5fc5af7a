# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""From Alertmanager's webhook to a contained GPU, through the real ansible-rulebook."""

from __future__ import annotations

import json

import pytest
from canaries import CORES, controller_of, touching, with_one_to_hold
from cluster.objects import wait_until
from loop import Controller, alive
from trigger import Rulebook


@pytest.fixture
def controller(tmp_path):
    with Controller(tmp_path / "controller") as made:
        made.ledger(write=True).set_mode("act", "tests", "the test needs it")
        yield made


def states(controller):
    return [one["state"] for one in controller.incidents()]


@pytest.mark.timeout(400)
def test_an_alert_becomes_a_contained_incident(controller):
    """A repeat starts no second run."""
    pid, _plain = controller.sick("bare-1")
    alert = controller.alert("bare-1", 3, 48)
    with Rulebook(controller).running() as rulebook:
        rows = rulebook.post(alert)
        wait_until(lambda: states(controller) == ["contained"], "the incident's end", 200)
        assert (rulebook.post(alert), alive(pid)) == (rows, False)
    assert rulebook.log.read_text().count("PLAY [Contain, each node at its own pace]") == 1


@pytest.mark.timeout(400)
@pytest.mark.parametrize("core", CORES)
def test_what_an_alert_says_is_data_all_the_way(core, tmp_path_factory):
    """S1: a template in every field of a message, one alert of which is ours and one is held. The run that reads them is of each ansible-core."""
    folder = tmp_path_factory.mktemp("s1")  # short, for the path of the socket that the newest core makes below it
    executed = folder / "executed"
    with controller_of(core, folder / "c") as controller:
        controller.node("bare-1", gpus=1, gpuops_managed=False)  # opted out, so that the incident ends where it is opened
        alert = controller.alert("bare-1", 0, 79)
        alert.write_text(json.dumps(with_one_to_hold(json.loads(alert.read_text()), touching(executed))))
        with Rulebook(controller).running() as rulebook:
            rulebook.post(alert)
            wait_until(lambda: rulebook.finished() == 1, "the end of the run", 200)
            log = rulebook.log.read_text()
        assert states(controller) == ["no_action"] and "its status is neither firing nor resolved" in log
    assert "lookup" not in log and not executed.exists()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("alone", [False, True])
def test_killed_before_and_in_the_run(controller, alone):
    """What nobody has decided is handed on when the rulebook is back. A run that died with it, or lost its terminal by it, is reconcile's."""
    pid, alert = controller.sick("bare-1")
    rulebook = Rulebook(controller, gpuops_trigger_window_seconds=30)
    with rulebook.running():
        rulebook.post(alert)
    assert states(controller) == []
    rulebook.variables["gpuops_trigger_window_seconds"] = 0.1
    with rulebook.running():
        wait_until(lambda: states(controller) == ["running"], "the incident", 200)
        if alone:
            rulebook.kill(alone=True)
            wait_until(lambda: not controller.ledger().busy_nodes(), "the end of the run that was left", 200)
    wait_until(lambda: not controller.ledger().busy_nodes(), "the end of the dead run's lock", 60)
    assert controller.play("reconcile").ok
    assert (states(controller), alive(pid)) == (["contained"], False)
    assert [entry["status"] for entry in controller.journal("bare-1") if entry["action"] == "terminate"] == ["intended", "applied"]

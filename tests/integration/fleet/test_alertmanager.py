# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A real Alertmanager, asked by the playbooks: what its webhook did not bring, and what a human has silenced."""

from __future__ import annotations

import json

import pytest
from fleet_alerts import fire, silence, unsilence
from loop import alive
from ports import free_port

pytestmark = pytest.mark.timeout(900)


def test_a_lost_webhook_is_found_by_reconcile(controller, alertmanager):
    """S5: a webhook is a hint that may be lost. Of a cluster the first that answers is asked; nobody is asked for the same alert twice."""
    pid, message = controller.sick("bare-1")
    fire(alertmanager.url, message)
    fire(alertmanager.url, controller.alert("bare-1", 2, 48, alertname="DiskFull"))
    urls = [f"http://127.0.0.1:{free_port()}", alertmanager.url]

    predicted = controller.play("reconcile", "--check", "--diff", alertmanager_urls=urls)
    assert predicted.ok and controller.incidents() == [], predicted.output
    run = controller.play("reconcile", alertmanager_urls=urls)
    assert run.ok, run.output
    [incident] = controller.incidents()
    assert (incident["state"], incident["node"], incident["alert"]["hint"]) == ("contained", "bare-1", False), incident["reason"]
    assert not alive(pid)

    again = controller.play("reconcile", alertmanager_urls=urls)
    assert again.ok and again.changed("localhost") == 0, again.output
    late = controller.remediate(alert_file=message, alertmanager_urls=urls)
    assert late.ok and [one["id"] for one in controller.incidents()] == [incident["id"]], late.output


def test_a_silenced_alert_is_left_alone_and_comes_back(controller, alertmanager):
    """S6, while its row waited."""
    pid, message = controller.sick("bare-1")
    fire(alertmanager.url, message)
    silence_id = silence(alertmanager.url, {"node": "bare-1"})
    urls = [alertmanager.url]

    for _run in range(2):
        run = controller.remediate(alert_file=message, alertmanager_urls=urls)
        assert run.ok and f"silenced by silence {silence_id} of jane" in run.output, run.output
    run = controller.play("reconcile", alertmanager_urls=urls)
    assert run.ok and controller.incidents() == [], run.output
    assert alive(pid)

    unsilence(alertmanager.url, silence_id)
    run = controller.play("reconcile", alertmanager_urls=urls)
    assert run.ok, run.output
    assert [one["state"] for one in controller.incidents()] == ["contained"]
    assert not alive(pid)


def test_a_silence_ends_what_has_not_begun_to_act(controller, alertmanager):
    """S6: reconcile does not go on with a silenced alert; a stage that had begun to act would be brought to its end."""
    pid, message = controller.sick("bare-1")
    fire(alertmanager.url, message)
    controller.before = {"Knock": "kill -KILL 0"}
    controller.remediate(alert_file=message)
    assert [one["state"] for one in controller.incidents()] == ["running"]
    controller.before = {}
    silence_id = silence(alertmanager.url, {"node": "bare-1"})
    urls = [alertmanager.url]

    run = controller.play("reconcile", alertmanager_urls=urls)
    assert run.ok, run.output
    [left] = controller.incidents()
    assert (left["state"], left["reason"]) == ("no_action", f"its alert is silenced by silence {silence_id} of jane")
    assert alive(pid)

    unsilence(alertmanager.url, silence_id)
    run = controller.play("reconcile", alertmanager_urls=urls)
    assert run.ok, run.output
    assert [one["state"] for one in controller.incidents()] == ["no_action", "contained"]
    assert not alive(pid)


def test_a_truncated_message_is_completed(controller, alertmanager):
    first, message = controller.sick("bare-1")
    second, left_out = controller.sick("bare-2")
    for one in (message, left_out):
        fire(alertmanager.url, one)
    message.write_text(json.dumps({**json.loads(message.read_text()), "truncatedAlerts": 1}))

    run = controller.remediate(alert_file=message, alertmanager_urls=[alertmanager.url])
    assert run.ok, run.output
    assert {one["node"]: one["state"] for one in controller.incidents()} == {"bare-1": "contained", "bare-2": "contained"}
    assert not alive(first) and not alive(second)


def test_without_alertmanager_the_loop_goes_on_and_says_so(controller):
    """S16: who cannot be asked what is silenced holds nobody up."""
    pid, message = controller.sick("bare-1")
    url = f"http://127.0.0.1:{free_port()}"
    run = controller.remediate(alert_file=message, alertmanager_urls=[url])
    assert run.ok, run.output
    [incident] = controller.incidents()
    assert incident["state"] == "contained" and not alive(pid)
    assert incident["verdict"]["missing"] == [
        {"source": "alertmanager", "why": f"Alertmanager gives no answer: {url}: no connection: Connection refused"}
    ]
    run = controller.play("reconcile", alertmanager_urls=[url], prometheus_url=url)
    assert run.ok and "Prometheus at" in run.output, run.output


def test_a_receiver_that_alertmanager_does_not_have(controller, alertmanager):
    """A name that is wrong hides what fires: that is said, and nothing is thought to be over."""
    _pid, message = controller.sick("bare-1")
    fire(alertmanager.url, message)
    for receiver, missing in (("gpuops", True), ("nobody", False)):
        run = controller.play("reconcile", alertmanager_urls=[alertmanager.url], alertmanager_receiver=receiver)
        assert run.ok and ("no receiver whose name matches" in run.output) == missing, run.output
    assert controller.incidents() == []

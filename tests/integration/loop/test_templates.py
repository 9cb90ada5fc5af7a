# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""S1: text that others write never becomes code, on the oldest, the usual and the newest ansible-core."""

from __future__ import annotations

import json
import sys

import alerts
import pytest
from canaries import CORES, controller_of, touching, with_one_to_hold

pytestmark = pytest.mark.timeout(900)
MIB = 1 << 20


@pytest.fixture(params=CORES)
def controller(request, tmp_path):
    with controller_of(request.param, tmp_path / "c") as made:
        made.ledger(write=True).set_mode("act", "tests", "the test needs it")
        yield made


def test_canary(controller, tmp_path):
    """In the message, in the kernel log and in processes' names; into reasons, failures, notifications, status and page."""
    file = tmp_path / "executed"
    canary = touching(file)
    in_a_name = f"{{{{ lookup(*'pipe;touch {file}'.split(';')) }}}}"  # an Xid's line has commas of its own
    short = "{{ 7 * 7 }}"  # the kernel keeps 15 characters of a process's name
    node = controller.node("bare-1", gpus=3, ansible_python_interpreter=sys.executable)
    crashed = node.start([0], canary.replace("/", "$"), MIB)
    ended = node.start([1], short, MIB)
    node.start([2], short, MIB, cgroup="system.slice")
    node.xid(0, 13, text=f"{canary} {{% raw %}}", pid=crashed, name=in_a_name)
    node.xid(1, 48, text=canary, pid=ended, name=in_a_name)
    node.xid(2, 48)
    messages = []
    for gpu, xid in enumerate(("13", "48", "48")):
        labels = {"node": "bare-1", "gpu_uuid": controller.uuid("bare-1", gpu), "gpu": None, "xid": xid}
        plain = alerts.rewritten(alerts.recorded("firing-single"), labels, annotations={"xid": None})
        messages.append(with_one_to_hold(plain, canary))
    path = tmp_path / "alert.json"
    path.write_text(json.dumps({**messages[0], "alerts": [alert for message in messages for alert in message["alerts"]]}))
    told = tmp_path / "told"
    notify = {"notify_command": ["tee", "-a", str(told)]}

    run = controller.remediate(alert_file=str(path), **notify)
    assert run.ok, run.output
    incidents = {one["gpu"]: one for one in controller.incidents()}
    application, memory, held = (incidents[controller.uuid("bare-1", gpu)] for gpu in range(3))
    page = tmp_path / "page.html"
    status = controller.play("status", incident_id=held["id"], page=str(page))

    assert status.ok, status.output
    reasons = [one["reason"] for one in (application, memory, held)]
    assert [one["state"] for one in (application, memory, held)] == ["no_action", "contained", "held_for_human"], reasons
    assert not file.exists()
    assert in_a_name in application["reason"] and short in held["reason"]  # as it was, to the letter
    assert any(canary in line for line in memory["stages"]["diagnose"]["data"]["evidence"]["info"]["kernel_log"])
    assert in_a_name in told.read_text() and short in told.read_text()
    assert f"({short})" in status.output
    assert "{{ 7 * 7 }}" in page.read_text()

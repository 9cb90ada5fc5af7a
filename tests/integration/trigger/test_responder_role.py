# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The role responder's files, as the programs that read them understand them."""

from __future__ import annotations

import json
import os
import shlex
import subprocess

import pytest
import yaml
from loop import REPOSITORY, Controller

USER = f"gpuops-{os.getpid()}"
TOKEN = r"it's a \ \" token"


@pytest.fixture
def deploy(tmp_path):
    """Runs the role with its files in a folder of the test; the answer is the run, `config` and `units` are there."""
    with Controller(tmp_path / "controller") as controller:
        fixed = {
            "responder_programs_dir": str(controller.programs),
            "responder_collections_path": str(REPOSITORY / ".ansible" / "collections"),
            "responder_config_dir": str(tmp_path / "config"),
            "responder_unit_dir": str(tmp_path / "units"),
            "responder_user": USER,
            "responder_start": False,
        }
        yield lambda *arguments, **variables: controller.play("deploy_controller", *arguments, **{**fixed, **variables})
    for command in ("userdel", "groupdel"):
        subprocess.run([command, USER], check=False, capture_output=True)


def command_of(unit):
    """The words of ExecStart."""
    text = unit.read_text().replace("\\\n", " ")
    [line] = [line for line in text.splitlines() if line.startswith("ExecStart=")]
    return shlex.split(line.partition("=")[2])


def amtool(*arguments):
    done = subprocess.run(["amtool", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def whole(snippet, config):
    """An Alertmanager's configuration with the receiver and the route in it, before a route to people."""
    ours = yaml.safe_load(snippet.read_text())
    route = {"receiver": "people", "routes": [*ours["route"]["routes"], {"receiver": "people"}]}
    config.write_text(yaml.safe_dump({"receivers": [{"name": "people"}, *ours["receivers"]], "route": route}))
    return ours


def alertmanager_takes_its_part(directory):
    """GPU alerts come to us and go on to people; our own notifications do not come back."""
    config = directory / "alertmanager.yml"
    ours = whole(directory / "config" / "alertmanager.yml", config)
    amtool("check-config", str(config))
    ours_too = ["node=gpu-1", "remediation=gpuops"]
    for alert, labels, receivers in (
        ("GpuXidFatal", ours_too, "gpuops,people"),
        ("GpuopsIncident", ours_too, "people"),
        ("NodeDown", ["node=gpu-1"], "people"),
    ):
        routed = amtool("config", "routes", "test", f"--config.file={config}", f"alertname={alert}", *labels)
        assert routed.strip() == receivers
    [webhook] = ours["receivers"][0]["webhook_configs"]
    assert (webhook["url"], webhook["send_resolved"], "max_alerts" in webhook) == ("https://localhost:5055/alerts", True, False)
    assert webhook["http_config"]["tls_config"] == {"ca_file": "/etc/alertmanager/ca.crt"}
    [route] = ours["route"]["routes"]
    assert [route[name] for name in ("group_by", "group_wait", "group_interval", "repeat_interval")] == [["node"], "1s", "10s", "10m"]


@pytest.mark.timeout(600)
def test_by_playbook(deploy, tmp_path):
    """What the programs need is checked first; tokens and passwords stand in files of root, and neither in units nor in what is printed."""
    wanted = {
        "trigger_token": TOKEN,
        "trigger_certfile": "/etc/gpuops/tls.crt",
        "ledger_url": "postgresql://u:secret@db/gpuops",
        "responder_credentials": [{"name": "kubeconfig", "path": "/etc/gpuops/kubeconfig", "environment": "KUBECONFIG"}],
        "receiver_ca_file": "/etc/alertmanager/ca.crt",
        "prometheus_token": "secret too",
    }
    assert not deploy(trigger_token="").ok, "without a token nobody may post"
    run = deploy("--check", **wanted)
    assert run.ok and not (tmp_path / "config").exists(), run.output
    run = deploy("--diff", **wanted)
    assert run.ok and "secret" not in run.output and "it's a" not in run.output, run.output
    alertmanager_takes_its_part(tmp_path)

    command = command_of(tmp_path / "units" / "gpuops-responder.service")
    assert command[1:3] == ["--rulebook", "gpuops.remediation.gpu_alerts"] and "--inventory" in command
    units = "".join(unit.read_text() for unit in (tmp_path / "units").glob("*.*") if unit.is_file())
    assert "secret" not in units and "KUBECONFIG=/run/credentials/%n/kubeconfig" in units
    settings = yaml.safe_load((tmp_path / "config" / "responder.yml").read_text())
    assert settings["gpuops_ledger_url"] == "postgresql://u:secret@db/gpuops" and "gpuops_trigger_token" not in settings
    assert settings["gpuops_prometheus_token"] == "secret too"
    # Within double quotes systemd's environment files and POSIX shells agree on a backslash before itself and before a quote.
    [assignment] = (tmp_path / "config" / "responder.env").read_text().splitlines()
    assert shlex.split(assignment) == [f"GPUOPS_TRIGGER_TOKEN={TOKEN}"]


@pytest.mark.timeout(600)
def test_a_controller_with_a_gpu(deploy, tmp_path):
    """What root keeps on a node is not in a folder of the services' user."""
    driver = ["-e", json.dumps({"responder_gpu_device": str(tmp_path)})]
    refused = deploy("--check", *driver, trigger_token="one")
    assert not refused.ok and "gpuops_state_dir" in refused.output, refused.output
    assert deploy("--check", *driver, trigger_token="one", state_dir="/var/lib/gpuops-node").ok


@pytest.mark.timeout(600)
def test_by_awx(deploy, tmp_path):
    """Another rulebook, and a schedule of AWX in place of the timer; a ledger that its jobs cannot reach is refused."""
    tokens = {"trigger_token": "one", "awx_url": "https://awx.example.org", "awx_token": "two"}
    assert deploy(**tokens).ok
    assert (tmp_path / "units" / "timers.target.wants" / "gpuops-reconcile.timer").is_symlink()
    refused = deploy(responder_runner="job_template", **tokens)
    assert not refused.ok and "PostgreSQL" in refused.output
    assert deploy(responder_runner="job_template", ledger_url="postgresql://db/gpuops", **tokens).ok

    command = command_of(tmp_path / "units" / "gpuops-responder.service")
    assert command[1:3] == ["--rulebook", "gpuops.remediation.gpu_alerts_awx"] and "--inventory" not in command
    assert [path.name for path in (tmp_path / "units").rglob("*reconcile*")] == []
    environment = dict(line.split("=", 1) for line in (tmp_path / "config" / "responder.env").read_text().splitlines())
    assert environment == {
        "GPUOPS_TRIGGER_TOKEN": '"one"',
        "EDA_CONTROLLER_URL": '"https://awx.example.org"',
        "EDA_CONTROLLER_TOKEN": '"two"',
    }
    settings = yaml.safe_load((tmp_path / "config" / "responder.yml").read_text())
    assert settings["gpuops_awx_remediate_template"] == "gpuops remediate"

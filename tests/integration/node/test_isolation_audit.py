# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The audit as people run it, on a simulated node with containers of which some break rules."""

from __future__ import annotations

import json
import re

import pytest
from loop import Controller, reachable_until
from simulated_containers import ALL_CAPABILITIES, Containers

pytestmark = pytest.mark.timeout(900)
MIB = 1 << 20
GOOD, GREEDY, RULER, EXPORTER = (digit * 64 for digit in "abcd")


def scope(container):
    return f"/system.slice/docker-{container}.scope"


@pytest.fixture
def controller(tmp_path):
    with Controller(tmp_path / "controller") as made:
        yield made


@pytest.fixture
def containers(controller, tmp_path):
    """Four on two GPUs: one keeps to its own, one has all and no memory limit, one is privileged, one is the node's own exporter."""
    node = controller.node("audit-1", gpus=2)
    made = Containers(node.path / "proc", node.path / "dev", tmp_path / "containers")
    uuid, both = controller.uuid("audit-1", 0), ["nvidia0", "nvidia1"]
    held = {gpu: node.start([gpu], f"train-{gpu}", 1024 * MIB) for gpu in (0, 1)}
    made.process(held[0], scope(GOOD), environment={"NVIDIA_VISIBLE_DEVICES": uuid}, devices=["nvidia0"], opened=["nvidia0"])
    made.process(held[1], scope(GREEDY), environment={"NVIDIA_VISIBLE_DEVICES": "all"}, devices=both, opened=["nvidia1"], memory_max="max")
    canary = f"<b>{{{{ lookup('pipe', 'touch {tmp_path}/canary') }}}}</b>"
    ruler = {"NVIDIA_VISIBLE_DEVICES": canary, "PASSWORD": "hush"}
    made.process(4194301, scope(RULER), environment=ruler, devices=both, capabilities=ALL_CAPABILITIES, namespaces={"pid": "host"})
    made.process(4194302, scope(EXPORTER), environment={"NVIDIA_VISIBLE_DEVICES": "all"}, devices=both, memory_max="max")
    for name, words in {"runc": "runc version 1.1.11", "nvidia-ctk": "NVIDIA Container Toolkit CLI version 1.19.0"}.items():
        program = tmp_path / "engines" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\necho '{words}'\n")
        program.chmod(0o755)
    (tmp_path / "config.toml").write_text("#accept-nvidia-visible-devices-envvar-when-unprivileged = true\n\n[nvidia-container-cli]\n")
    controller.host_variables["audit-1"].update(
        gpuops_cgroup_root=str(made.cgroup_root),
        gpuops_audit_engine_dirs=[str(tmp_path / "engines")],
        gpuops_audit_toolkit_configs=[str(tmp_path / "config.toml")],
        gpuops_audit_more_system=[f"docker/{EXPORTER[:12]}*"],
    )
    controller.variables["gpuops_audit_dir"] = str(tmp_path / "reports")
    return made


def report(tmp_path):
    return json.loads((tmp_path / "reports/isolation.json").read_text())


def found(tmp_path):
    return {(one["subject"], one["rule"], one["severity"]) for one in report(tmp_path)["findings"]}


def test_from_findings_to_a_clean_node(controller, containers, tmp_path):
    run = controller.play("audit_isolation")
    assert run.status == 2, run.output
    greedy, ruler = f"docker {GREEDY[:12]}", f"docker {RULER[:12]}"
    assert found(tmp_path) == {
        (greedy, "visible_all", "high"),
        (greedy, "memory_unlimited", "medium"),
        (ruler, "privileged", "high"),
        (ruler, "host_pid", "high"),
        ("node", "engine_fault", "high"),
        ("node", "toolkit_envvar", "low"),
    }
    assert "findings of severity high or above are left" in run.output and "audit-1" in report(tmp_path)["hosts"]
    for shown in (run.output, (tmp_path / "reports/isolation.txt").read_text(), (tmp_path / "reports/isolation.html").read_text()):
        assert re.search(rf"visible_all\b.*{greedy}", shown, re.DOTALL) and "sees nvidia0, nvidia1" in shown and "CVE-2024-21626" in shown
    assert run.changed("audit-1") == 0
    assert not (tmp_path / "canary").exists() and "hush" not in run.output + json.dumps(report(tmp_path))

    forbidden = controller.play("audit_isolation", "--tags", "fix", audit_memory_max="2G", audit_fail_on="never")
    assert "nothing is put right on audit-1: the mode is observe, and not act" in forbidden.output, "a new ledger observes"
    assert forbidden.ok and forbidden.changed("audit-1") == 0, forbidden.output
    controller.ledger(write=True).configure("act", None, False, "tests", "the test needs it")
    fixes = {"audit_memory_max": "2G", "audit_fix_toolkit": True}
    limit = containers.cgroup_root / scope(GREEDY)[1:] / "memory.max"
    foretold = controller.play("audit_isolation", "--tags", "fix", "--check", "--diff", **fixes)
    assert foretold.status == 2 and "2147483648" in foretold.output, foretold.output
    assert (limit.read_text(), (tmp_path / "config.toml").read_text().count("true")) == ("max\n", 1), "nothing is changed by a check"

    fixed = controller.play("audit_isolation", "--tags", "fix", **fixes)
    assert fixed.status == 2 and fixed.changed("audit-1") == 2, fixed.output
    assert {rule for _subject, rule, _severity in found(tmp_path)} == {"visible_all", "privileged", "host_pid", "engine_fault"}
    assert limit.read_text() == "2147483648"
    settings = (tmp_path / "config.toml").read_text().partition("[")[0]
    assert "envvar-when-unprivileged = false" in settings and "as-volume-mounts = true" in settings
    assert list(tmp_path.glob("config.toml.*~")), "as it was before"

    why = "one tenant, until the new image is out"
    accepted = [{"rule": rule, "why": why} for rule in ("visible_all", "engine_fault")] + [{"subject": ruler, "why": why}]
    clean = controller.play("audit_isolation", "--tags", "fix", audit_accepted=accepted, **fixes)
    assert clean.ok and clean.changed("audit-1") == 0, clean.output
    assert found(tmp_path) == set() and {one["accepted"] for one in report(tmp_path)["accepted"]} == {why}


def test_a_bare_host_and_two_that_cannot_be_read(controller, tmp_path):
    """A report of all; what could not be read is not taken for well."""
    controller.node("bare-1", gpus=1).start([0], "train", 1024 * MIB)
    controller.node("mute-1", gpus=1).driver_not_loaded()
    controller.node("dark-1", gpus=1)
    down = tmp_path / "down"
    down.touch()
    reachable_until(controller, "dark-1", down)
    controller.variables.update(gpuops_audit_dir=str(tmp_path / "reports"), gpuops_audit_engine_dirs=[], gpuops_audit_toolkit_configs=[])
    run = controller.play("audit_isolation", audit_fail_on="medium")
    assert run.status == 2, run.output
    assert {rule for _subject, rule, _severity in found(tmp_path)} == {"unread"}
    sources = {(one["node"], one["evidence"].partition(":")[0]) for one in report(tmp_path)["findings"]}
    assert sources >= {("mute-1", "nvml"), ("dark-1", "the node")} and "bare-1" not in {node for node, _source in sources}
    assert sorted(report(tmp_path)["hosts"]) == ["bare-1", "dark-1", "mute-1"]
    never = controller.play("audit_isolation", audit_fail_on="never")
    assert never.ok, never.output

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the role `responder` hands to its rulebook."""

from __future__ import annotations

import re

import pytest
import yaml
from expressions import evaluated
from loop import REPOSITORY

ROLE = REPOSITORY / "roles/responder"
DEFAULTS = yaml.safe_load((ROLE / "defaults/main.yml").read_text())
VARIABLES = yaml.safe_load((ROLE / "vars/main.yml").read_text())["responder_variables"]


def read_by(rulebook):
    """The public variables of a rulebook's templates."""
    text = (REPOSITORY / f"extensions/eda/rulebooks/{rulebook}.yml").read_text()
    return {name for template in re.findall(r"{{.*?}}", text) for name in re.findall(r"\bgpuops_\w+", template)}


def handed_on(by_playbook, inventory):
    """responder.yml, where the inventory says this much."""
    parts = ("responder_trigger", "responder_awx")
    given = {part: {name: evaluated(value, **inventory) for name, value in DEFAULTS[part].items()} for part in parts}
    return evaluated(VARIABLES, responder_by_playbook=by_playbook, **given)


@pytest.mark.parametrize(("rulebook", "by_playbook"), [("gpu_alerts", True), ("gpu_alerts_awx", False)])
def test_whatever_the_rulebook_reads_reaches_it(rulebook, by_playbook):
    """A setting that is dropped here would be in force in the playbooks alone: another policy, another cluster, another Prometheus."""
    names = read_by(rulebook)
    assert {"gpuops_fence_in", "gpuops_limits", "gpuops_trigger_batch_size"} < names
    inventory = {name: f"of {name}" for name in names} | {"gpuops_trigger_port": 6055, "gpuops_trigger_window_seconds": 0}
    assert handed_on(by_playbook, inventory) == inventory


def test_what_nobody_sets_is_left_to_the_rulebook():
    assert set(handed_on(True, {})) == {"gpuops_trigger_host", "gpuops_trigger_port", "gpuops_ledger_url"}

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Rulebooks as ansible-rulebook reads them: their schema, their conditions, the arguments of their sources."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuops.remediation.plugins.plugin_utils._trigger.settings import Settings
from ansible_rulebook.conf import settings
from ansible_rulebook.rules_parser import parse_rule_sets
from ansible_rulebook.util import substitute_variables
from ansible_rulebook.validators import Validate
from loop import REPOSITORY

RULEBOOKS = sorted((REPOSITORY / "extensions" / "eda" / "rulebooks").glob("*.yml"))
SOURCE = "gpuops.remediation.alertmanager"


@pytest.fixture(autouse=True)
def galaxy(monkeypatch):
    """Where the collection is comes from the ansible-galaxy beside this Python, whatever is on PATH."""
    monkeypatch.setattr(settings, "ansible_galaxy_path", str(Path(sys.executable).parent / "ansible-galaxy"))
    monkeypatch.setenv("ANSIBLE_COLLECTIONS_PATH", str(REPOSITORY / ".ansible" / "collections"))


def read(path: Path):
    return yaml.safe_load(path.read_text())


@pytest.mark.parametrize("path", RULEBOOKS, ids=lambda path: path.name)
def test_valid(path):
    Validate.rulebook(read(path))
    assert parse_rule_sets(read(path), {})


@pytest.mark.parametrize("path", RULEBOOKS, ids=lambda path: path.name)
def test_its_playbooks_are_there(path):
    actions = [rule["action"] for rules in read(path) for rule in rules["rules"]]
    names = [action["run_playbook"]["name"] for action in actions]
    assert names and all((REPOSITORY / "playbooks" / f"{name.rsplit('.', 1)[1]}.yml").exists() for name in names)


def test_a_condition_that_means_nothing_is_found():
    rules = read(RULEBOOKS[0])
    rules[0]["rules"][0]["condition"] = "event.status = 'firing'"
    with pytest.raises(Exception, match=r"Expected|condition"):
        parse_rule_sets(rules, {})


def test_the_source_has_the_arguments_that_the_rulebook_gives():
    """Rendered as ansible-rulebook does it; what nobody sets is the source's own default."""
    [source] = read(RULEBOOKS[0])[0]["sources"]
    rendered = substitute_variables(source[SOURCE], {"gpuops_trigger_tokens": ["t"]})
    assert Settings.of(rendered) == Settings(("t",), 5055)
    given = {"gpuops_trigger_tokens": ["t"], "gpuops_fence_in": "source", "gpuops_correlation": {"seconds": 20}, "gpuops_kubeconfig": "/k"}
    settings = Settings.of(substitute_variables(source[SOURCE], given))
    assert (settings.fence_in, settings.correlation_seconds, settings.kubeconfig) == ("source", 20.0, "/k")

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
BY_PLAYBOOK, BY_TEMPLATE = RULEBOOKS
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


def test_its_playbooks_are_there():
    names = [rule["action"]["run_playbook"]["name"] for rules in read(BY_PLAYBOOK) for rule in rules["rules"]]
    assert names and all((REPOSITORY / "playbooks" / f"{name.rsplit('.', 1)[1]}.yml").exists() for name in names)


def test_awx_does_what_the_playbooks_do():
    """The same source and rules; a template where the other has a playbook, with the same variables and nothing of the event beside them."""
    [by_playbook], [by_template] = read(BY_PLAYBOOK), read(BY_TEMPLATE)
    named = []
    for ours, theirs in zip(by_playbook["rules"], by_template["rules"], strict=True):
        run, job = ours.pop("action")["run_playbook"], theirs.pop("action")["run_job_template"]
        assert (job.get("job_args", {}).get("extra_vars"), job["include_events"]) == (run.get("extra_vars"), False)
        named.append((run["name"].rsplit(".", 1)[1], job["name"]))
    assert [playbook in template for playbook, template in named] == [True] * 3
    assert by_playbook == by_template


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
    given |= {"gpuops_prometheus_url": "https://p", "gpuops_prometheus_token": "s", "gpuops_prometheus_ca_file": "/c"}
    given["gpuops_alertmanager_urls"] = ["http://a", "http://b"]
    settings = Settings.of(substitute_variables(source[SOURCE], given))
    assert (settings.fence_in, settings.correlation_seconds, settings.kubeconfig) == ("source", 20.0, "/k")
    assert (settings.prometheus_url, settings.prometheus_token, settings.prometheus_ca_file) == ("https://p", "s", "/c")
    assert settings.alertmanager_urls == ("http://a", "http://b")

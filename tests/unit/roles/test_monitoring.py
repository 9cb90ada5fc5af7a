# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The alert rules against what they must agree with: the policy, and the names that exporters and event source use."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuops.remediation.plugins.module_utils import _names
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.alerts import DEFAULT_LABELS
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.store import Ledger
from ansible_collections.gpuops.remediation.plugins.module_utils._xid.policy import CATALOG_CODES, QUARANTINES, load_policy
from ansible_collections.gpuops.remediation.plugins.module_utils._xid.recovery import RECOVERY_ACTIONS
from ansible_collections.gpuops.remediation.plugins.plugin_utils._trigger.metrics import Metrics

REPOSITORY = Path(__file__).resolve().parents[3]
FILES = REPOSITORY / "roles/monitoring/files"
POLICY = load_policy(str(REPOSITORY / "data/xid_policy.yml"))
WORDS = {
    *("absent", "and", "by", "increase", "max", "max_over_time", "min", "offset", "on", "or", "time", "unless", "vector"),
    *("up", "job", "alertname", "severity"),  # Prometheus' own, and the label that all alerts have
}


def rules(name: str) -> list[dict]:
    return [rule for group in yaml.safe_load((FILES / name).read_text())["groups"] for rule in group["rules"]]


GPU_RULES, RESPONDER_RULES = rules("gpu_alerts.yml"), rules("responder_alerts.yml")
BY_ALERT = {rule["alert"]: rule for rule in GPU_RULES + RESPONDER_RULES if "alert" in rule}


def severity_of(row) -> str | None:
    """What an alert about a row of the policy is worth; None where there is none."""
    if row.action in QUARANTINES:
        return "critical"
    if row.action == "hold":
        return "warning"
    return "info" if row.action == "observe" or row.domain == "application" else None


def xid_severities(code: int) -> list[str]:
    """Of the rules that match a code."""
    found = []
    for rule in GPU_RULES:
        matchers = re.findall(r'xid(=~|!~)"([^"]*)"', rule["expr"])
        if matchers and all(bool(re.fullmatch(pattern, str(code))) is (how == "=~") for how, pattern in matchers):
            found.append(rule["labels"]["severity"])
    return found


@pytest.mark.parametrize("code", [*CATALOG_CODES, 0, 174, 999, 1790])
def test_every_xid_has_the_one_alert_that_the_policy_asks_for(code):
    severity = severity_of(POLICY.row(code))
    assert xid_severities(code) == ([severity] if severity else [])


def test_recovery_actions_have_the_severity_that_the_policy_asks_for():
    by_severity = {"critical": "GpuRecoveryAction", "warning": "GpuRecoveryOfDomain"}
    domain = RECOVERY_ACTIONS.index("recover_imex_domain")
    assert BY_ALERT["GpuRecoveryAction"]["expr"].endswith(f"> 0 != {domain}")
    assert BY_ALERT["GpuRecoveryOfDomain"]["expr"].endswith(f"== {domain}")
    for action in (*RECOVERY_ACTIONS[1:], "a new one"):
        severity = severity_of(POLICY.recovery(action))
        assert by_severity[severity] == ("GpuRecoveryOfDomain" if action == "recover_imex_domain" else "GpuRecoveryAction")
        assert BY_ALERT[by_severity[severity]]["labels"]["severity"] == severity


@pytest.mark.parametrize(
    ("alert", "state"),
    [
        ("GpuRowRemapFailed", "row_remap_failure"),
        ("GpuRowRemapPending", "row_remap_pending"),
        ("GpuUncorrectableEcc", "uncorrectable_ecc"),
        ("GpuNvmlDown", "nvml_hung"),
    ],
)
def test_states_have_the_severity_that_the_policy_asks_for(alert, state):
    assert BY_ALERT[alert]["labels"]["severity"] == severity_of(POLICY.states[state])


def test_rules_name_nothing_that_nobody_serves():
    served = {value for name, value in vars(_names).items() if name.startswith(("METRIC_", "LABEL_XID", "LABEL_ERROR", "LABEL_SOURCE"))}
    served |= {*_names.LABELS_GPU, *_names.LABELS_GROUP, _names.LABEL_REMEDIATION, *WORDS}
    text = asyncio.run(Metrics(Ledger.open("sqlite://").figures).text()).decode()
    served |= set(re.findall(r"^gpuops_\w+", text, re.MULTILINE))
    for rule in GPU_RULES + RESPONDER_RULES:
        served.add(rule.get("record", ""))
        expression = re.sub(r'"[^"]*"', '""', rule["expr"])
        used = set(re.findall(r"(?<![\w:])[a-zA-Z_:][\w:]*", expression)) | set(rule.get("labels", ()))
        assert used <= served, rule


def test_an_xid_keeps_every_label_that_the_responder_reads():
    [recording] = [rule for rule in GPU_RULES if "record" in rule]
    kept = set(re.search(r"by \(([^)]*)\)", recording["expr"])[1].split(", "))
    assert kept == {*_names.LABELS_GPU, _names.LABEL_XID, *_names.LABELS_GROUP}
    read = {fact: names[0] for fact, names in DEFAULT_LABELS.items() if fact != "gpu_index"}  # which we do not export
    assert set(read.values()) == kept


def test_jobs_are_the_ones_that_are_named():
    used = {job for rule in GPU_RULES + RESPONDER_RULES for job in re.findall(r'job="(\w+)"', rule["expr"])}
    assert used == {_names.JOB_EXPORTER, _names.JOB_RESPONDER}


def test_only_what_a_node_can_be_asked_about_reaches_the_responder():
    """An alert without a node would be held, and people told of it twice."""
    ours = {name for name, rule in BY_ALERT.items() if rule["labels"].get(_names.LABEL_REMEDIATION) == _names.REMEDIATION}
    for_people = {"GpuExporterDown", "GpuSourceSilent", "GpuPersistenceOff", "GpuExporterAbsent"}
    assert ours == {rule["alert"] for rule in GPU_RULES if "alert" in rule} - for_people
    assert all("by (node" in rule["expr"] or rule["expr"].startswith("gpuops:xid_events:recent") for rule in map(BY_ALERT.get, ours))


@pytest.mark.parametrize("alert", BY_ALERT)
def test_every_alert_says_what_to_do(alert):
    assert set(BY_ALERT[alert]["annotations"]) == {"summary", "description", "what_to_do"}
    assert alert in (REPOSITORY / "docs/monitoring.md").read_text()


def test_every_alert_for_the_responder_outlives_its_exporter():
    assert {rule["keep_firing_for"] for rule in BY_ALERT.values() if _names.LABEL_REMEDIATION in rule["labels"]} == {"10m"}

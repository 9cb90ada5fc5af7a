# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Expressions and pages of the role `isolation_audit`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from expressions import evaluated

ROLE = Path(__file__).resolve().parents[3] / "roles/isolation_audit"
VARS = yaml.safe_load((ROLE / "vars/main.yml").read_text())
SEVERITIES = VARS["isolation_audit_severities"]


@pytest.mark.parametrize("fail_on, fails", [("low", SEVERITIES), ("high", ["high", "critical"]), ("critical", ["critical"]), ("never", [])])
def test_from_which_severity_on_a_run_fails(fail_on, fails):
    known = {"isolation_audit_severities": SEVERITIES, "isolation_audit_fail_on": fail_on}
    assert evaluated(VARS["isolation_audit_fails"], **known) == fails


@pytest.mark.parametrize(
    "managed, operating, why",
    [
        (True, {}, ""),
        (True, {"mode": "act"}, ""),
        (True, {"mode": "fence"}, "the mode is fence, and not act"),
        (False, {"mode": "act"}, "it is opted out by gpuops_managed"),
        ("no", {}, "it is opted out by gpuops_managed"),
    ],
)
def test_what_forbids_to_put_anything_right(managed, operating, why):
    assert (evaluated(VARS["isolation_audit_forbidden"], isolation_audit_managed=managed, isolation_audit_operating=operating) or "") == why


def test_the_page_escapes_whatever_it_shows():
    hostile = "<script>'\"&"
    names = ("rule", "node", "subject", "evidence", "why", "fix", "accepted")
    finding = {**dict.fromkeys(names, hostile), "severity": "high"}
    report = {"audited_at": hostile, "hosts": [hostile], "not_audited": [hostile], "findings": [finding], "accepted": [finding]}
    text = (ROLE / "templates/report.html.j2").read_text()
    page = evaluated(text, isolation_audit_report=report, isolation_audit_order=list(reversed(SEVERITIES)))
    assert "<script" not in page and page.count("&lt;script&gt;") == 15
    assert not re.search(r"https?:|<link|<img", page), "it fetches nothing"

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from datetime import timedelta

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._diagnosis.correlation import Key, Rule, Seen, correlated, domain_of
from ansible_collections.gpuops.remediation.plugins.module_utils._xid.policy import load_policy
from ledgers import NOON
from loop import REPOSITORY

POLICY = load_policy(str(REPOSITORY / "data" / "xid_policy.yml"))
JOB = {"job": "train-7"}


def seen(*nodes, domain="nvlink", groups=None, seconds=0.0, apart=0.0):
    return [Seen(node, domain, groups or JOB, NOON + timedelta(seconds=seconds + place * apart)) for place, node in enumerate(nodes)]


def test_three_nodes_of_a_job_are_one_fault():
    assert correlated(seen("a", "b", "c"), Rule()) == {Key("job", "train-7", "nvlink"): [0, 1, 2]}


@pytest.mark.parametrize(
    "alerts",
    [
        pytest.param(seen("a", "b"), id="too few"),
        pytest.param(seen("a", "a", "b"), id="two of them of one node"),
        pytest.param([*seen("a", "b"), *seen("c", domain="fabric")], id="another domain"),
        pytest.param([*seen("a", "b"), *seen("c", groups={"job": "train-8"})], id="another job"),
        pytest.param([*seen("a", "b"), *seen("c", groups={"fleet": 100})], id="no group"),
        pytest.param([*seen("a", "b"), *seen("c", seconds=15.1)], id="too late"),
    ],
)
def test_what_is_no_group(alerts):
    assert correlated(alerts, Rule()) == {}


def test_one_after_the_other():
    """Each within the window of the one before, whatever their order here."""
    assert correlated(seen("a", "b", "c", apart=14.0)[::-1], Rule()) == {Key("job", "train-7", "nvlink"): [2, 1, 0]}


def test_each_alert_belongs_to_one_group_and_the_nearest():
    both = {"job": "train-7", "rack": {"name": "r12", "size": 16}}
    alerts = [*seen("a", "b", "c", groups=both), *seen("d", "e", "f", groups={"rack": "r12"})]
    assert correlated(alerts, Rule()) == {Key("job", "train-7", "nvlink"): [0, 1, 2], Key("rack", "r12", "nvlink"): [3, 4, 5]}


@pytest.mark.parametrize("xid, domain", [(13, "application"), (74, "nvlink"), (79, None), (48, None), (None, None)])
def test_only_what_shows_on_many_nodes_waits_for_others(xid, domain):
    assert domain_of(xid, POLICY) == domain

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.leases import (
    ANNOTATION_TOKEN,
    Lock,
    parse_lease,
    released,
    renewed,
    taken,
)

NOW = 1_790_000_000.5


@pytest.mark.parametrize(
    "lock, held",
    [
        pytest.param(Lock("other", 5, NOW + 10), True, id="live"),
        pytest.param(Lock("other", 5, NOW - 0.9), True, id="lapsed by less than the server's clock shows"),
        pytest.param(Lock("other", 5, NOW - 1.1), False, id="lapsed"),
        pytest.param(Lock("me", 5, NOW + 10), False, id="my own, taken over after a restart"),
        pytest.param(Lock("", 5, 0.0), False, id="free"),
    ],
)
def test_held_by_other(lock, held):
    assert lock.held_by_other("me", NOW) is held


@pytest.mark.parametrize(
    "lock, mine",
    [
        pytest.param(Lock("me", 5, NOW + 10), True, id="live"),
        pytest.param(Lock("me", 5, NOW - 3600), True, id="S5: lapsed, and nobody took it"),
        pytest.param(Lock("me", 6, NOW + 10), False, id="S5: a later run of the same holder"),
        pytest.param(Lock("other", 6, NOW + 10), False, id="somebody else's"),
        pytest.param(Lock("", 5, 0.0), False, id="released"),
    ],
)
def test_is_mine(lock, mine):
    assert lock.is_mine("me", 5) is mine


def test_the_token_grows_for_ever():
    """S5: over takers, releases and even the deletion of the Lease."""
    first = taken(None, "gpuops-gpu-1", "me", NOW, 30)
    assert parse_lease(first) == Lock("me", int(NOW), NOW + 30)
    again = renewed(first, NOW + 20)
    assert parse_lease(again) == Lock("me", int(NOW), NOW + 50)
    free = released(again)
    assert parse_lease(free) == Lock("", int(NOW), 0.0)
    second = taken(free, "gpuops-gpu-1", "other", NOW + 60, 30)
    assert parse_lease(second) == Lock("other", int(NOW) + 1, NOW + 90, transitions=1)
    assert parse_lease(taken(None, "gpuops-gpu-1", "me", NOW + 61, 30)).token > parse_lease(second).token


def test_what_others_put_on_the_lease_stays():
    lease = {"metadata": {"name": "gpuops-gpu-1", "resourceVersion": "9", "annotations": {"theirs": "1"}, "labels": {"x": "y"}}, "spec": {}}
    after = taken(lease, "gpuops-gpu-1", "me", NOW, 30)
    assert after["metadata"] == {**lease["metadata"], "annotations": {"theirs": "1", ANNOTATION_TOKEN: "1"}}


def test_a_lease_that_somebody_else_wrote():
    spec = {"holderIdentity": "kubectl", "leaseTransitions": 7, "renewTime": "2026-11-30T00:11:55Z", "leaseDurationSeconds": 60}
    lock = parse_lease({"metadata": {"name": "x"}, "spec": spec})
    assert (lock.holder, lock.token, lock.transitions) == ("kubectl", 7, 7)
    assert lock.expires == 1795997575.0

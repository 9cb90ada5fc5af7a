# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from datetime import timedelta

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.episodes import Told
from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.news import Known, news
from ledgers import NOON, alert

FACTS = {"name": "GpuXid", "node": "gpu-1", "gpu_uuid": None, "pci_bus_id": None, "gpu_index": 3, "xid": 79}


def told(fingerprint: str = "aaaaaaaa", since: float = 0, until: float = 0, rebuilt: bool = False, **facts) -> Told:
    judged = alert(NOON + timedelta(seconds=since), fingerprint=fingerprint, **{"name": "GpuXid", "gpu_index": 3, "xid": 79, **facts})
    return Told({}, judged, judged.starts_at, NOON + timedelta(seconds=until), rebuilt)


def known(fingerprint: str = "aaaaaaaa", seconds: float = 0, decided: bool = True, **facts) -> Known:
    return Known(fingerprint, NOON + timedelta(seconds=seconds), {**FACTS, **facts}, decided)


@pytest.mark.parametrize(
    ("one", "have", "is_news"),
    [
        pytest.param(told(), [], True, id="nobody has told of it"),
        pytest.param(told(), [known()], False, id="the same episode"),
        pytest.param(told(since=600, until=600), [known()], True, id="it fires again"),
        pytest.param(told(), [known(hint=True)], True, id="only a hint of it is known"),
        pytest.param(told(hint=True), [known(hint=True)], False, id="the same hint"),
        pytest.param(told(hint=True), [known()], False, id="a hint of what is known"),
        pytest.param(told(), [known(decided=False)], True, id="left for a silence that is over"),
        pytest.param(told("bbbbbbbb"), [known()], True, id="Alertmanager calls it another alert"),
        pytest.param(told("bbbbbbbb", rebuilt=True), [known()], False, id="a label is missing, the fault is the same"),
        pytest.param(told("bbbbbbbb", rebuilt=True, xid=48), [known()], True, id="another Xid"),
        pytest.param(told("bbbbbbbb", rebuilt=True, node="gpu-2"), [known()], True, id="another node"),
        pytest.param(
            told(since=-300, until=0, rebuilt=True), [known(seconds=2)], False, id="somewhere between its condition and its firing"
        ),
        pytest.param(told(since=-300, until=0, rebuilt=True), [known(seconds=6)], True, id="after it"),
        pytest.param(Told({}, None, None, None), [known()], True, id="one that cannot be judged is for the inbox to recognise"),
    ],
)
def test_what_is_news(one: Told, have: list, is_news: bool) -> None:
    assert news([one], have) == ([one] if is_news else [])


def test_what_was_left_for_a_silence_stays_left_while_nobody_says_that_it_is_over() -> None:
    assert news([told(rebuilt=True)], [known(decided=False)], silences_known=False) == []

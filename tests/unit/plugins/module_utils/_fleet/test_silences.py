# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.silences import Silences, matches

ID = "0f6c1a52-6a8d-4f0e-9f0e-3c1d4e8a2b11"


def matcher(name: str, value: str, regex: bool = False, **more: object) -> dict:
    return {"name": name, "value": value, "isRegex": regex, **more}


def silence(*matchers: dict, author: str = "jane", silence_id: str = ID) -> dict:
    return {"id": silence_id, "createdBy": author, "status": {"state": "active"}, "matchers": list(matchers)}


@pytest.mark.parametrize(
    ("matchers", "fits"),
    [
        ([matcher("node", "gpu-1")], True),
        ([matcher("node", "gpu-1"), matcher("xid", "48")], False),
        ([matcher("node", "gpu-2", isEqual=False)], True),
        ([matcher("node", "gpu", True)], False),
        ([matcher("node", "gpu-[0-9]", True)], True),
        ([matcher("node", "gpu-.*", True, isEqual=False)], False),
        ([matcher("rack", "")], True),
        ([matcher("node", r"\pL-1(", True)], False),
        ([matcher("node", r"\pL-1(", True, isEqual=False)], False),
        ([matcher("node", "(gpu-)+1", True)], False),  # one that Python could be kept busy with is Alertmanager's to judge
        ([], False),
    ],
)
def test_matchers_as_alertmanager_reads_them(matchers: list, fits: bool) -> None:
    assert matches(silence(*matchers), {"node": "gpu-1", "xid": "79"}) is fits


def test_who_silenced_what() -> None:
    """Alertmanager's own word first, of what it knows; labels for what it has forgotten."""
    found = Silences.of_api(
        [silence(matcher("node", "gpu-1"))],
        [
            {"fingerprint": "a", "status": {"silencedBy": [ID]}},
            {"fingerprint": "b", "status": {"silencedBy": [], "inhibitedBy": ["a"]}},
            {"fingerprint": "c", "status": {"silencedBy": ["one that ended in between"]}},
        ],
    )
    assert [found.of(fingerprint) for fingerprint in "abc"] == [f"silence {ID} of jane", None, None]
    assert found.of("b", {"node": "gpu-2"}) is None
    assert found.of("d", {"node": "gpu-1"}) == f"silence {ID} of jane"
    assert Silences().of("a", {"node": "gpu-1"}) is None


def test_words_are_data() -> None:
    """S1: an author and an id are written by others."""
    given = silence(matcher("node", "gpu-1"), author="{{ lookup('pipe', 'id') }}", silence_id="{{ 1 }}")
    assert Silences((), [given]).of("a", {"node": "gpu-1"}) == "silence without a usable id of somebody"

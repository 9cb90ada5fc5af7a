# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import re
import time

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.expressions import MAX_CHARACTERS, fits
from hypothesis import assume, given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("expression", "value", "same"),
    [
        ("gpu-1", "gpu-1", True),
        ("gpu", "gpu-1", False),
        ("gpu-1|gpu-2", "gpu-2", True),
        ("gpu-(1|2)", "gpu-2", True),
        ("(?:gpu-1|rack.*)", "rack-7", True),
        ("gpu-(1|2).*", "gpu-3", False),
        ("gpu-.*", "gpu-", True),
        ("gpu-.+", "gpu-", False),
        ("gpu-.", "gpu-12", False),
        ("gpu-[0-9]", "gpu-7", True),
        ("gpu-[^0-9]", "gpu-7", False),
        (r"gpu-1\.example\.org", "gpu-1.example.org", True),
        (r"gpu-1\.example\.org", "gpu-1xexample.org", False),
        (r"gpu-(1|2)\.example\.org", "gpu-2.example.org", True),
        (r"a\(.\)-", "a.-", False),
        (r"\*", "gpu", False),
        (r"\*", "*", True),
        ("", "", True),
        ("Gpu", "gpu", False),
    ],
)
def test_what_silences_are_made_of(expression: str, value: str, same: bool) -> None:
    assert fits(expression, value) is same


@pytest.mark.parametrize(
    "expression",
    [
        "(a+)+$",
        "a*",
        "a{3}",
        "(a|b)(c|d)",
        "((a))",
        "a(b|c)|d",
        "^a$",
        r"\d+",
        r"\pL",
        "[a",
        "[[:alpha:]]",
        "(?i)a",
        "a" * (MAX_CHARACTERS + 1),
    ],
)
def test_what_is_left_to_alertmanager(expression: str) -> None:
    assert fits(expression, "a") is None


@pytest.mark.parametrize("expression", ["(a+)+$", "(" + "a" * 1000, ".*a" * 300 + "b", "|".join([".*a.*a.*a.*b"] * 70)])
def test_no_expression_keeps_a_run_busy(expression: str) -> None:
    """Python's own matching of the first takes longer than anybody waits."""
    began = time.monotonic()
    assert not fits(expression, "a" * MAX_CHARACTERS)
    assert time.monotonic() - began < 5


PIECES = ["a", "b", "-", ".", ".*", ".+", "[ab]", "[^a]", r"\.", "|"]


def python(expression: str, value: str) -> bool:
    try:
        return re.fullmatch(expression, value) is not None
    except re.error:
        assume(False)
        raise


@given(st.lists(st.sampled_from(PIECES), max_size=6), st.text("ab-.", max_size=6))
def test_as_python_says(pieces: list, value: str) -> None:
    assert fits("".join(pieces), value) is python("".join(pieces), value)


@given(st.lists(st.sampled_from([*PIECES, "(", "(?:", ")", r"\(", r"\)", r"\|", "*"]), max_size=9), st.text("ab-.()|", max_size=6))
def test_as_python_says_or_nothing(pieces: list, value: str) -> None:
    assert fits("".join(pieces), value) in (None, python("".join(pieces), value))

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""The regular expressions of silences, which anybody may write: those that can be matched in a time that grows with the text alone.

Python's own matching goes back and tries again, and one expression can keep it busy for ever. So an expression is read as alternatives of shell
patterns, which is what silences are made of. What is more than that is left to Alertmanager, which says of each alert that it knows who silenced it.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Optional

MAX_CHARACTERS = 1024  # of an expression, and of the value that it is matched with

_PIECE = re.compile(
    r"(?P<any>\.\*)|(?P<some>\.\+)|(?P<one>\.)|\[(?P<not>\^?)(?P<of>[A-Za-z0-9_-]+)\]|\\(?P<escaped>[^A-Za-z0-9])|(?P<plain>[^\\.*+?^$(){}\[\]|])"
)
_GROUP = re.compile(r"(?P<before>(?:[^()|\\]|\\.)*)\((?:\?:)?(?P<inner>(?:[^()\\]|\\.)*)\)(?P<after>(?:[^()|\\]|\\.)*)")


def fits(expression: str, value: str) -> Optional[bool]:
    """Whether all of the value matches; None where that is not for us to say."""
    patterns = _patterns(expression) if max(len(expression), len(value)) <= MAX_CHARACTERS else None
    return None if patterns is None else any(fnmatchcase(value, pattern) for pattern in patterns)


@lru_cache(maxsize=256)
def _patterns(expression: str) -> Optional[list[str]]:
    """Alternatives, of the whole or of one group in it."""
    group = _GROUP.fullmatch(expression)
    before, inner, after = group.group("before", "inner", "after") if group else ("", expression, "")
    patterns = [_pattern(before + one + after) for one in inner.split("|")]
    return None if None in patterns else [one for one in patterns if one is not None]


def _pattern(alternative: str) -> Optional[str]:
    pattern, position = "", 0
    while position < len(alternative):
        piece = _PIECE.match(alternative, position)
        if piece is None:
            return None
        position = piece.end()
        kind, found = str(piece.lastgroup), piece.group
        if kind in ("any", "some", "one"):
            pattern += {"any": "*", "some": "?*", "one": "?"}[kind]
        elif kind == "of":
            pattern += "[%s%s]" % ("!" if found("not") else "", found("of"))
        else:
            pattern += "[%s]" % found(kind) if found(kind) in "*?[" else found(kind)
    return pattern

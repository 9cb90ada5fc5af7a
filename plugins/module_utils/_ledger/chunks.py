# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Long lists, cut into what one statement takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

Value = TypeVar("Value", int, str)

STATEMENT_VALUES = 500
ANSWER_BYTES = 16 * 1024 * 1024  # as much as one message may have


def chunks(values: Iterable[Value]) -> Iterator[list[Value]]:
    """No more in one statement than any database takes."""
    left = iter(values)
    while some := list(islice(left, STATEMENT_VALUES)):
        yield some


def chunks_by_size(sized: Iterable[Sequence[int]]) -> Iterator[list[int]]:
    """Of rows, each with its size: no more in one answer than fits into memory, and one at least."""
    some: list[int] = []
    total = 0
    for row, size in sized:
        if some and (total + size > ANSWER_BYTES or len(some) == STATEMENT_VALUES):
            yield some
            some, total = [], 0
        some.append(row)
        total += size
    if some:
        yield some

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
"""The cheapest way from what stands on a board to what is wanted there, by looking at every way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Callable, NamedTuple, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._mig.board import Board, span


@dataclass(frozen=True)
class Piece:
    """Something that stands on the board, on those slots, or that is wanted there: then anywhere, if it has no start."""

    kind: str
    start: Optional[int] = None
    slots: int = 0
    detail: Hashable = None
    inside: int = 0  # things that go with it, and so many of them busy
    busy: int = 0


class Change(NamedTuple):
    """What has to go inside a piece to make it a wanted one, and how much of that is busy."""

    busy: int = 0
    destroyed: int = 0


class Arrangement(NamedTuple):
    kept: tuple[tuple[int, Piece], ...]  # which of those that stand there is which wanted one
    gone: tuple[int, ...]
    placed: tuple[tuple[Piece, int], ...]
    busy: int

    @property
    def change(self) -> Change:
        return Change(self.busy, len(self.gone))


Fit = Callable[[int, Piece], Optional[Change]]
Spot = tuple[str, int]  # a kind, and the start of one of them
Old = tuple[str, int]  # a kind, and the slots of one of them
_Groups = tuple[tuple[str, Optional[int], int], ...]  # a kind, where it has to start if that is prescribed, how many
_Option = tuple[int, Change]  # which of the kinds of wanted pieces a standing one can be
_Pairing = tuple[Optional[_Option], ...]


def arrange(board: Board, have: Sequence[Piece], want: Sequence[Piece], fit: Fit, *, spare_busy: bool = True) -> Optional[Arrangement]:
    """None where there is no way. With spare_busy=False busy pieces may go too, as few as can be: those are what stands in the way.

    `fit` says what has to go inside a standing piece so that it is a wanted one; None if it cannot be that, or not without busy things
    where those are spared.

    In this order the cheapest has the fewest busy gone, pieces gone, things gone inside pieces, slots stranded; then does without an empty
    board in between; then leaves the largest room and the most choices, at the lowest starts. How much is created follows from what goes.
    """
    wanted = Counter(want)
    pieces = sorted(wanted, key=lambda piece: (-board.sizes[piece.kind], piece.kind, piece.start is None))
    options = _options(have, pieces, fit)
    movable = [not (spare_busy and piece.busy) for piece in have]
    left = [wanted[piece] for piece in pieces]
    best: Optional[tuple[tuple[object, ...], Arrangement]] = None
    for gone in range(len(have) + 1):
        for pairing in _pairings(options, movable, left, gone):
            best = _cheaper(board, have, pieces, left, pairing, best)
        if best and spare_busy:
            break
    return best[1] if best else None


def can_all_stay(have: Sequence[Piece], want: Sequence[Piece], fit: Fit) -> bool:
    """Whether each piece that stands there can be one of the wanted, wherever the rest of them would be."""
    wanted = Counter(want)
    options = _options(have, list(wanted), fit)
    return any(True for _pairing in _pairings(options, [False] * len(have), list(wanted.values()), 0))


def bridge(board: Board, placed: Sequence[Spot], gone: Sequence[Old]) -> Optional[tuple[int, int]]:
    """Which of the new can be there before which of the old, as the last of them, goes."""
    for new, (kind, start) in enumerate(placed):
        for old, (old_kind, old_slots) in enumerate(gone):
            if not _slots(board, kind, start) & old_slots and (kind != old_kind or board.limits[kind] > 1):
                return new, old
    return None


def _slots(board: Board, kind: str, start: int) -> int:
    return span(start, board.sizes[kind])


def _options(have: Sequence[Piece], pieces: Sequence[Piece], fit: Fit) -> list[list[_Option]]:
    rows = [[(number, fit(one, piece)) for number, piece in enumerate(pieces)] for one in range(len(have))]
    return [[(number, change) for number, change in row if change] for row in rows]


def _pairings(options: list[list[_Option]], movable: list[bool], left: list[int], gone: int) -> Iterator[_Pairing]:
    """Every way to keep all but so many. `left` says, while a way is looked at, how many of each wanted piece it leaves to be placed."""
    if gone > len(options):
        return
    if not options:
        yield ()
        return
    for option in options[0]:
        if left[option[0]]:
            left[option[0]] -= 1
            for rest in _pairings(options[1:], movable[1:], left, gone):
                yield (option, *rest)
            left[option[0]] += 1
    if gone and movable[0]:
        for rest in _pairings(options[1:], movable[1:], left, gone - 1):
            yield (None, *rest)


def _cheaper(
    board: Board,
    have: Sequence[Piece],
    pieces: Sequence[Piece],
    left: Sequence[int],
    pairing: _Pairing,
    best: Optional[tuple[tuple[object, ...], Arrangement]],
) -> Optional[tuple[tuple[object, ...], Arrangement]]:
    """The cheapest way with this pairing and what it costs, or the best so far."""
    free, busy, destroyed = board.all_slots, 0, 0
    gone = []
    for one, option in enumerate(pairing):
        if option is None:
            gone.append(one)
            busy += have[one].busy
            destroyed += have[one].inside
        else:
            free &= ~have[one].slots
            busy += option[1].busy
            destroyed += option[1].destroyed
    if best and best[0][:3] < (busy, len(gone), destroyed):
        return best
    rest = [piece for piece, number in zip(pieces, left) for _one in range(number)]
    olds = tuple((have[one].kind, have[one].slots) for one in gone) if len(gone) == len(have) else ()
    filled = _fill(board, free, tuple((piece.kind, piece.start, number) for piece, number in zip(pieces, left) if number), olds)
    if filled is None:
        return best
    (stranded, *finer), spots = filled
    cost = (busy, len(gone), destroyed, stranded, *finer, spots, tuple(gone))
    if best and best[0] <= cost:
        return best
    kept = tuple((one, pieces[option[0]]) for one, option in enumerate(pairing) if option)
    return cost, Arrangement(kept, tuple(gone), tuple(zip(rest, (start for _kind, start in spots))), busy)


@lru_cache(maxsize=1 << 15)
def _fill(board: Board, free: int, groups: _Groups, olds: tuple[Old, ...]) -> Optional[tuple[tuple[int, ...], tuple[Spot, ...]]]:
    """Where the rest goes at the least loss, and that loss."""
    best = None
    for placed, left in _ways(board, free, groups, 0):
        worth = board.worth(left)
        emptied = bool(olds and placed and bridge(board, placed, olds) is None)
        found = ((worth.stranded, int(emptied), worth.short_of_largest, worth.short_of_choices), placed)
        if best is None or found < best:
            best = found
    return best


def _ways(board: Board, free: int, groups: _Groups, above: int) -> Iterator[tuple[tuple[Spot, ...], int]]:
    """Every way to place these; pieces of one group are placed upwards, since which of them is where makes no difference."""
    if not groups:
        yield (), free
        return
    (kind, prescribed, number), *others = groups
    rest: _Groups = ((kind, prescribed, number - 1), *others) if number > 1 else tuple(others)
    for start in board.starts[kind] if prescribed is None else (prescribed,):
        slots = _slots(board, kind, start)
        if start >= above and not slots & ~free:
            for placed, left in _ways(board, free & ~slots, rest, start + 1 if number > 1 else 0):
                yield ((kind, start), *placed), left

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""The models that are known, for planning without a GPU at hand. What a driver answers about its own GPU goes before these tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._mig.profiles import Model, Profile

Figures = Optional[tuple[int, ...]]

# shape, query, profile id, limit, compute slices, memory slices, starts
_EIGHT_SLICES = (
    ("1g", 0, 19, 7, 1, 1, (0, 1, 2, 3, 4, 5, 6)),
    ("1g+me", 7, 20, 1, 1, 1, (0, 1, 2, 3, 4, 5, 6)),
    ("1g", 9, 15, 4, 1, 2, (0, 2, 4, 6)),  # twice the memory
    ("2g", 1, 14, 3, 2, 2, (0, 2, 4)),
    ("3g", 2, 9, 2, 3, 4, (0, 4)),
    ("4g", 3, 5, 1, 4, 4, (0,)),
    ("7g", 4, 0, 1, 7, 8, (0,)),
)
_A30 = (
    ("1g", 0, 14, 4, 1, 1, (0, 1, 2, 3)),
    ("1g+me", 7, 21, 1, 1, 1, (0, 1, 2, 3)),
    ("2g", 1, 5, 2, 2, 2, (0, 2)),
    ("2g+me", 8, 6, 1, 2, 2, (0, 2)),
    ("4g", 3, 0, 1, 4, 4, (0,)),
)
_RTX_PRO_6000 = (
    ("1g", 0, 14, 4, 1, 1, (0, 1, 2, 3)),
    ("1g+me", 7, 21, 1, 1, 1, (0, 1, 2, 3)),
    ("1g+gfx", 10, 47, 4, 1, 1, (0, 1, 2, 3)),
    ("1g+me.all", 15, 65, 1, 1, 1, (0, 1, 2, 3)),
    ("1g-me", 13, 67, 4, 1, 1, (0, 1, 2, 3)),
    ("2g", 1, 5, 2, 2, 2, (0, 2)),
    ("2g+gfx", 11, 35, 2, 2, 2, (0, 2)),
    ("2g+me.all", 16, 64, 1, 2, 2, (0, 2)),
    ("2g-me", 14, 66, 2, 2, 2, (0, 2)),
    ("4g", 3, 0, 1, 4, 4, (0,)),
    ("4g+gfx", 12, 32, 1, 4, 4, (0,)),
)


def _model(
    name: str,
    device_ids: tuple[int, ...],
    shapes: tuple[tuple[str, int, int, int, int, int, tuple[int, ...]], ...],
    gigabytes: tuple[int, ...],
    memory_mib: Figures,
    multiprocessors: Figures,
    evidence: str,
    aliases: Sequence[tuple[str, str]] = (),
) -> Model:
    """The figures are in the order of the shapes."""
    profiles = []
    for position, (shape, query, profile_id, limit, compute, memory, starts) in enumerate(shapes):
        slices, sign, attribute = shape.partition("+") if "+" in shape else shape.partition("-")
        full = f"{slices}.{gigabytes[position]}gb{sign}{attribute}"
        profiles.append(
            Profile(
                full,
                query,
                profile_id,
                limit,
                compute,
                memory,
                starts,
                memory_mib[position] if memory_mib else None,
                multiprocessors[position] if multiprocessors else None,
                tuple(other for other, known in aliases if known == full),
            )
        )
    return Model(name, device_ids, max(profile.memory_slices for profile in profiles), tuple(profiles), evidence)


def _sizes(one: int, double: int, two: int, three: int, four: int, seven: int) -> tuple[int, ...]:
    """A figure for each shape of the family with eight memory slices; 1g+me is as large as 1g."""
    return one, one, double, two, three, four, seven


_HOPPER_SM = _sizes(16, 26, 32, 60, 64, 132)
_AMPERE_SM = _sizes(14, 14, 28, 42, 56, 98)

MODELS = (
    _model(
        "a30-24",
        (0x20B7,),
        _A30,
        (6, 6, 12, 12, 24),
        (5952, 5952, 11968, 11968, 24000),
        (14, 14, 28, 28, 56),
        "listed",
    ),
    _model(
        "a100-40",
        (0x20B0, 0x20B1, 0x20F1, 0x20F6),
        _EIGHT_SLICES,
        _sizes(5, 10, 10, 20, 20, 40),
        _sizes(4864, 9856, 9856, 19968, 19968, 40192),
        _AMPERE_SM,
        "listed",
    ),
    _model(
        "a100-80",
        (0x20B2, 0x20B5, 0x20F3, 0x20F5),
        _EIGHT_SLICES,
        _sizes(10, 20, 20, 40, 40, 80),
        _sizes(9728, 19968, 19968, 40192, 40192, 80896),
        _AMPERE_SM,
        "listed",
        (("7g.79gb", "7g.80gb"),),
    ),
    _model(
        "h100-80",
        (0x2330, 0x2324, 0x2322),
        _EIGHT_SLICES,
        _sizes(10, 20, 20, 40, 40, 80),
        _sizes(9984, 20096, 20096, 40448, 40448, 81152),
        _HOPPER_SM,
        "listed",
    ),
    _model("h100-80-pcie", (0x2331,), _EIGHT_SLICES, _sizes(10, 20, 20, 40, 40, 80), None, None, "unverified"),  # documents contradict
    _model(
        "h100-94",
        (0x2321, 0x233A),
        _EIGHT_SLICES,
        _sizes(12, 24, 24, 47, 47, 94),
        _sizes(11008, 22144, 22144, 47488, 47488, 95360),
        _HOPPER_SM,
        "listed",
    ),
    _model("h100-96", (0x2342, 0x233D, 0x20B6, 0x2329), _EIGHT_SLICES, _sizes(12, 24, 24, 48, 48, 96), None, None, "unverified"),
    _model("gh200-144", (0x2348,), _EIGHT_SLICES, _sizes(18, 36, 36, 72, 72, 144), None, None, "unverified"),
    _model(
        "h200-141",
        (0x2335, 0x233B),
        _EIGHT_SLICES,
        _sizes(18, 35, 35, 71, 71, 141),
        _sizes(16384, 33280, 33280, 71424, 71424, 143360),
        _HOPPER_SM,
        "measured",
    ),
    _model("b200-180", (0x2901,), _EIGHT_SLICES, _sizes(23, 45, 45, 90, 90, 180), None, None, "unverified"),
    _model(
        "gb200-186",
        (0x2941,),
        _EIGHT_SLICES,
        _sizes(23, 47, 47, 93, 93, 186),
        None,
        None,
        "unverified",
        (
            ("1g.24gb", "1g.23gb"),
            ("1g.24gb+me", "1g.23gb+me"),
            ("3g.95gb", "3g.93gb"),
            ("4g.95gb", "4g.93gb"),
            ("7g.189gb", "7g.186gb"),
        ),
    ),
    _model("b300-269", (0x3182,), _EIGHT_SLICES, _sizes(34, 67, 67, 135, 135, 269), None, None, "unverified"),
    _model("gb300-278", (0x31C2,), _EIGHT_SLICES, _sizes(35, 70, 70, 139, 139, 278), None, None, "unverified"),
    _model(
        "rtx-pro-6000-96",
        (0x2BB5,),
        _RTX_PRO_6000,
        (24, 24, 24, 24, 24, 48, 48, 48, 48, 96, 96),
        (24192,) * 5 + (48512,) * 4 + (97280,) * 2,
        (46,) * 5 + (94,) * 4 + (188,) * 2,
        "documented",
    ),
)


def model_named(name: str) -> Optional[Model]:
    return next((model for model in MODELS if model.name == name), None)


def model_of(pci_device_id: int) -> Optional[Model]:
    """By the device half of the PCI id, 0x2335 of 0x233510DE."""
    return next((model for model in MODELS if pci_device_id in model.pci_device_ids), None)

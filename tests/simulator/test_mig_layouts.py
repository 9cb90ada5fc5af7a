# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which GPU instances can be beside which: the layouts that NVIDIA publishes, and the orders that it says work or fail."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import nvml_child
import pytest
from gpusim.node import Node

# Every layout once, by creating and destroying: the placements of a layout are in the order of `options`.
WALK = """
device, options, layouts = gpu(), [], []
for name in %r:
    number = profile(name)["id"]
    options += [(name, number, *one) for one in placements(n.nvmlDeviceGetGpuInstancePossiblePlacements, device, number)]

def walk(names, first):
    room = {number: n.nvmlDeviceGetGpuInstanceRemainingCapacity(device, number) for number in {option[1] for option in options}}
    layouts.append([sorted(names), not any(room.values())])
    for position, (name, number, start, size) in enumerate(options[first:], first + 1):
        if room[number]:
            try:
                made = n.nvmlDeviceCreateGpuInstanceWithPlacement(device, number, ctypes.byref(n.c_nvmlGpuInstancePlacement_t(start, size)))
            except n.NVMLError_InsufficientResources:
                continue
            walk([*names, name], position)
            n.nvmlGpuInstanceDestroy(made)

walk([], 0)
result = layouts[1:]
"""
A100_MAXIMAL = {"7", "43", "421", "4111", "33", "322", "3211", "31111", "2221", "22111", "211111", "1111111"}
A100 = ["1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"]


@pytest.mark.parametrize(
    ("model", "profiles", "layouts", "full", "multisets", "maximal"),
    [
        ("a100-40", A100, 297, 19, 37, 12),
        ("a100-40", [*A100, "1g.10gb"], 722, 78, 77, 28),
        ("a30-24", ["1g.6gb", "2g.12gb", "4g.24gb"], 25, 5, 9, 4),
    ],
    ids=["a100", "a100-with-1g.10gb", "a30"],
)
def test_number_of_layouts(
    make_node: Callable[..., Node], model: str, profiles: list[str], layouts: int, full: int, multisets: int, maximal: int
) -> None:
    """The 19 full layouts of the A100 are those that NVIDIA publishes."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:  # thousands of changes
        node = make_node(root=Path(memory), mig=True, model_name=model, gpus=1)
        found = nvml_child.ask(node.nvml_library, nvml_child.MIG + WALK % profiles, seconds=120)
    distinct = {tuple(names) for names, _full in found}
    largest = {one for one in distinct if not any(one != other and Counter(one) <= Counter(other) for other in distinct)}
    assert (len(found), sum(is_full for _names, is_full in found), len(distinct), len(largest)) == (layouts, full, multisets, maximal)
    if profiles == A100:
        assert {"".join(sorted((name[0] for name in names), reverse=True)) for names in largest} == A100_MAXIMAL


@pytest.fixture
def a100(make_node: Callable[..., Node]) -> Node:
    return make_node(mig=True, model_name="a100-40", gpus=1)


IN_ORDER = """
result = []
for number in %r:
    try:
        result.append(where(n.nvmlDeviceCreateGpuInstance(gpu(), number))[1:])
    except n.NVMLError_InsufficientResources:
        result.append(None)
"""


@pytest.mark.parametrize(
    ("order", "expected"),
    [([19, 19, 14, 9], [[6, 1], [4, 1], [0, 2], None]), ([9, 19, 14, 19], [[4, 4], [0, 1], [2, 2], [1, 1]])],
    ids=["fails", "works"],
)
def test_orders_of_the_user_guide(a100: Node, order: list[int], expected: list[object]) -> None:
    """Where the driver puts what it is not told where to put: 1g, 1g, 2g leave no half for a 3g, the other way round all fit."""
    assert nvml_child.ask(a100.nvml_library, nvml_child.MIG + IN_ORDER % order) == expected


def test_with_placements_the_order_does_not_matter(a100: Node) -> None:
    body = "result = [where(create(*one))[1:] for one in (('1g.5gb', 0), ('1g.5gb', 1), ('2g.10gb', 2), ('3g.20gb', 4))]"
    assert nvml_child.ask(a100.nvml_library, nvml_child.MIG + body) == [[0, 1], [1, 1], [2, 2], [4, 4]]


def test_where_a_hopper_puts_its_first_half(make_node: Callable[..., Node]) -> None:
    body = "result = where(create('3g.71gb'))"
    assert nvml_child.ask(make_node(mig=True, gpus=1).nvml_library, nvml_child.MIG + body) == [1, 0, 4]


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("h200-141", {"7g.141gb": [0], "4g.71gb": [1], "3g.71gb": [1, 2], "2g.35gb": [3, 4, 5], "1g.35gb": [3, 4, 5, 6],
                      "1g.18gb": [7, 8, 9, 10, 11, 12, 13]}),
        ("a30-24", {"4g.24gb": [0], "2g.12gb": [1, 2], "1g.6gb": [3, 4, 5, 6]}),
    ],
)  # fmt: skip
def test_numbers_say_size_and_place(make_node: Callable[..., Node], model: str, expected: dict[str, list[int]]) -> None:
    node = make_node(mig=True, model_name=model, gpus=1)
    body = f"""
result = {{}}
for name in {list(expected)}:
    for start, size in placements(n.nvmlDeviceGetGpuInstancePossiblePlacements, gpu(), profile(name)["id"]):
        made = create(name, start)
        result.setdefault(name, []).append(where(made)[0])
        n.nvmlGpuInstanceDestroy(made)
"""
    assert nvml_child.ask(node.nvml_library, nvml_child.MIG + body) == expected


def test_media_extensions_are_given_once(make_node: Callable[..., Node]) -> None:
    """One instance of a GPU has them, also where two sizes are offered with them."""
    body = """
def left():
    return [n.nvmlDeviceGetGpuInstanceRemainingCapacity(gpu(), profile(name)["id"]) for name in %r]
before, _made = left(), create(%r)
result = [before, left(), [outcome(create, name) for name in %r]]
"""
    for model, names in (("h200-141", ["1g.18gb+me", "1g.18gb"]), ("a30-24", ["1g.6gb+me", "2g.12gb+me", "1g.6gb"])):
        node = make_node(model, mig=True, model_name=model, gpus=1)
        before, after, outcomes = nvml_child.ask(node.nvml_library, nvml_child.MIG + body % (names, names[0], names))
        assert before == {"h200-141": [1, 7], "a30-24": [1, 1, 4]}[model]
        assert after == {"h200-141": [0, 6], "a30-24": [0, 0, 3]}[model]
        assert outcomes == ["InsufficientResources"] * (len(names) - 1) + ["ok"]

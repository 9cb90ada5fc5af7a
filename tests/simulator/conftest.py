# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from gpusim import instances
from gpusim.node import Node


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    made: list[Node] = []

    def make(name: str = "gpu-1", root: Path = tmp_path / "nodes", mig: bool = False, **options: object) -> Node:
        node = Node(root, name)
        made.append(node)
        node.create(**options)  # type: ignore[arg-type]
        for index in range(len(node.state()["gpus"]) if mig else 0):
            if "pending" in instances.set_mode(node, index, True):
                node.reset(index)
        return node

    yield make
    for node in made:
        node.destroy()


@pytest.fixture
def node(make_node: Callable[..., Node]) -> Node:
    return make_node(gpus=2)

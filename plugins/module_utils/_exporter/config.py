# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""The file by which both programs of a node know what they need."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.remediation.plugins.module_utils._node.node import Node


@dataclass(frozen=True)
class Config:
    node_name: str
    host: str
    port: int
    certfile: str
    keyfile: str
    cafile: str
    interval_seconds: float
    nvml_timeout_seconds: float
    max_owners: int
    bpffs_dir: str
    state_file: str
    watch_dir: str
    node: Mapping[str, Any]  # the node's paths, as modules have them

    @classmethod
    def load(cls, path: str) -> Config:
        return cls(**json.loads(Path(path).read_text(encoding="utf-8")))

    @property
    def paths(self) -> Node:
        return Node.from_params(self.node)

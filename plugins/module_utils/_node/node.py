# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""One node as its options describe it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import ProcFs
from ansible_collections.gpuops.remediation.plugins.module_utils._node.statedir import StateDir


@dataclass(frozen=True)
class Node:
    proc: ProcFs
    state: StateDir
    dev_root: str
    kmsg_path: str
    cgroup_root: str
    nvml_library: str

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> Node:
        return cls(
            proc=ProcFs(params["proc_root"]),
            state=StateDir(params["state_dir"]),
            dev_root=params["dev_root"],
            kmsg_path=params["kmsg_path"],
            cgroup_root=params["cgroup_root"],
            nvml_library=params["nvml_library"],
        )

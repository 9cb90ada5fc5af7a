# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""What the proof asks of the machine: who else is in a cgroup, and where the task itself runs."""

from __future__ import annotations

import os

from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.paths import process_path
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.proof import MemberInfo, Task
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.state import Cgroups
from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import ProcFs

_PROC = "/proc"  # cgroups and the task itself are the machine's, also where the node is simulated


def members(cgroups: Cgroups, path: str) -> list[MemberInfo]:
    found = []
    for member in cgroups.members(path):
        process = ProcFs(_PROC).process(member.pid)
        found.append(MemberInfo(member.pid, member.path, (process.executable or process.name) if process else None))
    return found


def this_task() -> Task:
    proc = ProcFs(_PROC)
    own = proc.process(os.getpid())
    return Task(proc.ancestors(os.getpid()), (process_path(own.cgroups) if own else None) or "/")

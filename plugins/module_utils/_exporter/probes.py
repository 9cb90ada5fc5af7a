# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""What the pinned maps of the probes say, read by a watched child of root's reader."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.info import describe
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup import numbers
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.paths import owner_of, process_path
from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import ProcFs
from ansible_collections.gpuops.remediation.plugins.module_utils._node.watchdog import Emit

Owner = list[Optional[str]]  # container, pod, unit
TOLD = ("cuda_mem", "gpu_xid")  # of the others nothing is on the page


def collect(bpffs_dir: str, proc: ProcFs, emit: Emit) -> None:
    """One item a probe. Of cgroups also whose each is, since a process that has ended cannot be asked."""
    roots = dict(numbers.roots(Path("/proc/self/mounts").read_text(encoding="utf-8")))
    for name in TOLD:
        told = describe(bpffs_dir, name, proc)
        owners = {_number(one): _owner(_number(one), roots) for one in (*told.get("cgroups", ()), *told.get("failures", ()))}
        emit({"probe": name, "owners": [[*ids, owner] for ids, owner in owners.items()], **told})


def _number(one: Mapping[str, Any]) -> tuple[int, int]:
    ids = one["ids"] if "ids" in one else one["cgroup"]
    return ids["v2"], ids["v1"]


def _owner(ids: tuple[int, int], roots: Mapping[str, str]) -> Owner | None:
    """None where the cgroup is gone."""
    at = {name: numbers.path_of(roots[name], number) for name, number in zip(("", "memory"), ids) if number and name in roots}
    path = process_path({name: path for name, path in at.items() if path})
    if path is None:
        return None
    owner = owner_of(path)
    if owner and owner.container:
        return [owner.container.id, owner.container.pod_uid, None]
    return [None, None, owner.unit if owner else None]

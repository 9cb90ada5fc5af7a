# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: unit_steps
short_description: What systemd has to do so that units run as their files say
version_added: "0.1.0"
author: The gpuops.remediation maintainers (@gpuops)
description:
  - It is decided from what is loaded and from when it was started, so that what an interrupted run has left undone is done by the next one.
options:
  _input:
    description: The results of M(ansible.builtin.systemd_service) in check mode, looped over the units, with C(TZ=UTC).
    type: list
    elements: dict
    required: true
  unit_dir:
    description: The folder of the unit files.
    type: path
    required: true
  files:
    description: The results of M(ansible.builtin.stat), looped over the unit files and what O(reads) names.
    type: list
    elements: dict
    required: true
  reads:
    description: By unit, the paths beside its unit file that its process reads when it starts.
    type: dict
    default: {}
  written:
    description: The paths that this run has written or, in check mode, would have.
    type: list
    elements: path
    default: []
  may_reload:
    description: Whether systemd may be reloaded.
    type: bool
    default: false
  foretell:
    description: Whether this is check mode, where what would have been written is not there yet.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Restart what runs an earlier program
  ansible.builtin.systemd_service:
    name: "{{ item }}"
    state: restarted
  loop: "{{ (loaded.results | gpuops.remediation.unit_steps('/etc/systemd/system', files.results)).restart }}"
"""

RETURN = r"""
_value:
  description:
    - C(pending), the units that systemd has loaded from an earlier file; C(reload), whether it is to be reloaded for them; C(restart), the units that
      run and were started before one of their files was written.
  type: dict
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, Optional


def unit_steps(
    loaded: Sequence[Mapping[str, Any]],
    unit_dir: str,
    files: Sequence[Mapping[str, Any]],
    reads: Optional[Mapping[str, Sequence[str]]] = None,
    written: Sequence[str] = (),
    may_reload: bool = False,
    foretell: bool = False,
) -> dict[str, Any]:
    units = {one["item"]: one["status"] for one in loaded if one.get("status")}
    own = {unit: "%s/%s" % (unit_dir, unit) for unit in units}
    pending = [
        unit
        for unit, status in units.items()
        if status.get("NeedDaemonReload") == "yes" or (foretell and own[unit] in written and status.get("LoadState") == "loaded")
    ]
    times = {one["stat"]["path"]: one["stat"]["mtime"] for one in files if one["stat"]["exists"]}

    def is_late(unit: str, status: Mapping[str, str]) -> bool:
        """A unit file that systemd has not loaded is taken up by no restart."""
        if unit in pending and may_reload:
            return True
        began = _seconds(status["ActiveEnterTimestamp"])
        paths = [*(reads or {}).get(unit, ()), *([] if unit in pending else [own[unit]])]
        return any(path in written or int(times.get(path, 0)) > began for path in paths)

    return {
        "pending": pending,
        "reload": bool(pending) and may_reload,
        "restart": [unit for unit, status in units.items() if status.get("ActiveState") == "active" and is_late(unit, status)],
    }


def _seconds(stamp: str) -> int:
    """systemd's `Mon 2026-11-30 16:17:13 UTC`; the day's name is in the reader's language."""
    day, _space, zone = stamp.partition(" ")[2].rpartition(" ")
    if zone != "UTC":
        raise ValueError("systemd was not asked for UTC: %s" % stamp)
    return int(datetime.strptime(day, "%Y-%m-%d %H:%M:%S").replace(tzinfo=timezone.utc).timestamp())


class FilterModule:
    """Ansible's entry."""

    def filters(self) -> dict[str, Any]:
        return {"unit_steps": unit_steps}

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: mig_devices
short_description: Count the GPUs and MIG devices that a node has, or will have after a change
version_added: "0.1.0"
author: The gpuops.remediation maintainers (@gpuops)
description:
  - A MIG device is a compute instance. GPUs that are lost, or whose mode nobody could tell, are left out.
options:
  _input:
    description: The node's GPUs, as M(gpuops.remediation.mig_info) returns them.
    type: list
    elements: dict
    required: true
  planned:
    description:
      - GPUs whose layout is to be another one, as M(gpuops.remediation.mig_layout) returns them in check mode.
      - Of one whose holders are to be waited for, what it will have once they have gone.
    type: list
    elements: dict
    default: []
"""

EXAMPLES = r"""
- name: Have the scheduler know what is there
  gpuops.remediation.device_plugin:
    node: gpu-1
    gpus: "{{ (mig.gpus | gpuops.remediation.mig_devices).gpus }}"
    mig_devices: "{{ (mig.gpus | gpuops.remediation.mig_devices).mig_devices }}"
    empty_gpus: "{{ (mig.gpus | gpuops.remediation.mig_devices).empty_gpus }}"
"""

RETURN = r"""
_value:
  description:
    - C(gpus), how many have MIG switched off; C(mig_devices), how many there are of each, by profile name; C(uuids), of all of them, as far
      as they are there already.
    - C(empty_gpus), which of them, by UUID, have MIG switched on and no MIG device, be it that their instances have no compute instance.
      NVIDIA's device plugin ends with an error where there is one.
  type: dict
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gpuops.remediation.plugins.module_utils._mig.names import device_name


def mig_devices(gpus: Sequence[Mapping[str, Any]], planned: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    told = {one["uuid"]: (one.get("error") or {}).get("once_free") or one.get("after") for one in planned}
    after = {uuid: layout for uuid, layout in told.items() if layout}
    whole: list[str] = []
    empty: list[str] = []
    names: Counter[str] = Counter()
    uuids: list[str] = []
    for gpu in gpus:
        layout = after.get(gpu["uuid"], {"mig": gpu["mig"]["current"], "instances": gpu["instances"]})
        if gpu["lost"] or (layout["mig"] is None and gpu["supported"] is not False):
            continue
        if not layout["mig"]:
            whole.append(gpu["uuid"])
            continue
        if not any(instance["compute"] for instance in layout["instances"]):
            empty.append(gpu["uuid"])
        for instance in layout["instances"]:
            for compute in instance["compute"]:
                names[device_name(instance["profile"], compute["slices"])] += 1
                uuids += [compute["uuid"]] if compute["uuid"] else []
    return {"gpus": len(whole), "mig_devices": dict(names), "empty_gpus": empty, "uuids": whole + uuids}


class FilterModule:
    """Ansible's entry."""

    def filters(self) -> dict[str, Any]:
        return {"mig_devices": mig_devices}

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
"""Makes the stored layouts again, before anything uses the GPUs. Runs on the node without Ansible, as the program that mig_boot installs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable

from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.errors import LockHeld
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.errors import Busy, Refused
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.requests import request_of
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.task import LayoutTask, Options
from ansible_collections.gpuops.remediation.plugins.module_utils._node import device_allocations
from ansible_collections.gpuops.remediation.plugins.module_utils._node.journal import Journal
from ansible_collections.gpuops.remediation.plugins.module_utils._node.lock import FileLock
from ansible_collections.gpuops.remediation.plugins.module_utils._node.node import Node

AGAIN_SECONDS = 2.0
Tell = Callable[[str], None]


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(config: str, tell: Tell = _say) -> int:
    """The exit status: whether every GPU is as wanted now."""
    try:
        return 0 if restore(json.loads(Path(config).read_text(encoding="utf-8")), tell) else 1
    except (OSError, ValueError) as error:
        tell(f"cannot read {config}: {error}")
    except RemediationError as error:
        tell(str(error))
    return 1


def restore(config: Mapping[str, Any], tell: Tell) -> bool:
    """Nothing busy is destroyed, and nothing that the kubelet has given away: the program may be started long after the boot."""
    well = True
    for gpu in _once_it_can(config, Node.from_params(config["mig_layout"]))["gpus"]:
        error = gpu["error"]
        tell(f"GPU {gpu['pci_bus_id'] or gpu['uuid']}: {error['msg'] if error else _done(gpu)}")
        well = well and not error and not gpu["reset_required"]
    return well


def _done(gpu: Mapping[str, Any]) -> str:
    if gpu["reset_required"]:
        return "its mode changes with a reset only, which is not allowed (allow_reset)"
    return f"{len(gpu['steps'])} steps" if gpu["changed"] else "nothing to do"


def _once_it_can(config: Mapping[str, Any], node: Node) -> dict[str, Any]:
    """A driver that is not there yet, and who has a GPU open for a moment, are no reason to leave a node uncut until somebody comes."""
    ends = time.monotonic() + config["driver_seconds"]
    while True:
        # Each time: a node that is up gives more away, and others may come to it
        params = {**config["mig_layout"], "allocated": _allocated(config["kubelet_dir"], node)}
        _refuse_locked(node)
        task = LayoutTask(node, request_of(params), Options.from_params(params), Journal.from_params(node, params), lambda: None)
        try:
            answer = task.run(check_mode=False)[0]
            if time.monotonic() >= ends or not any(_may_pass(gpu["error"] or {}) for gpu in answer["gpus"]):
                return answer
        except Refused:
            if time.monotonic() >= ends:
                raise
        time.sleep(AGAIN_SECONDS)


def _may_pass(error: Mapping[str, Any]) -> bool:
    """What is given to somebody is not waited for."""
    return error.get("kind") == Busy.kind and not error.get("given")


def _allocated(kubelet_dir: str, node: Node) -> list[str]:
    """A node without the file has no kubelet that gives devices away. Who hands out other things than NVIDIA's plugin names them as it likes.

    Instances also of a boot before: what is there no more is in nobody's way. A GPU is there again, and nobody has it since.
    """
    checkpoint = Path(kubelet_dir) / device_allocations.CHECKPOINT
    if not checkpoint.exists():
        return []
    devices = [device for one in device_allocations.read(kubelet_dir)["allocations"] for device in one["devices"]]
    old = checkpoint.stat().st_mtime < node.proc.boot_time()
    return [device for device in devices if device.startswith("MIG-") or (device.startswith("GPU-") and not old)]


def _refuse_locked(node: Node) -> None:
    lock = FileLock(node.state, node.proc.boot_id())
    have = lock.read()
    if lock.seconds_left(have):
        raise LockHeld(f"{have.holder} holds the node's lock", holder=have.holder, token=have.token)

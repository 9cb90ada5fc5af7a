# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Evidence about a healthy node with eight GPUs, and the words to make it sick."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

from ansible_collections.gpuops.remediation.plugins.module_utils._xid.lines import parse_lines

ROOT = Path(__file__).parents[2]
POLICY_FILE = ROOT / "data" / "xid_policy.yml"
FIXTURES = ROOT / "tests" / "fixtures" / "xid"

BOOT_ID = "6f1c2f9e-3a55-4a53-9d0e-0d9e5a3f7b11"
BOOT_TIME = datetime(2026, 11, 29, 20, 0, tzinfo=timezone.utc)
NOW = BOOT_TIME + timedelta(hours=1)


def at(seconds: float) -> str:
    """A moment after boot."""
    return (BOOT_TIME + timedelta(seconds=seconds)).isoformat()


def uuid(index: int) -> str:
    return f"GPU-00000000-0000-0000-0000-00000000000{index}"


def pci(index: int) -> str:
    return f"0000:0{index}:00.0"


def gpu(index: int = 0, **fields):
    healthy = {
        "uuid": uuid(index),
        "pci_bus_id": pci(index),
        "index": index,
        "serial": f"16500{index}",
        "memory_total_bytes": 150754820096,
        "recovery_action": "none",
        "remapped_rows": {"correctable": 0, "uncorrectable": 0, "pending": False, "failure": False},
        "ecc": {"enabled": True, "uncorrected_volatile": 0},
        "mig": {"current": False, "pending": False, "instances": []},
        "processes": [],
        "lost": False,
        "errors": [],
    }
    return {**healthy, **fields}


def process(pid: int, name: str = "train", kind: str = "compute", **fields):
    return {
        "pid": pid,
        "type": kind,
        "name": name,
        "executable": f"/usr/bin/{name}",
        "start_time": at(10),
        "container": {"runtime": "containerd", "id": f"c{pid}", "pod_uid": f"pod-{pid}"},
        **fields,
    }


def xid(
    code: int, text: str = "", index: int = 0, *, pid: int | None = None, name: str = "train", seconds: float = 60, where: str = ""
) -> str:
    """A kernel-log line as the driver prints it."""
    who = f"pid={pid}, name={name}, " if pid is not None else ""
    return f"[{seconds:12.6f}] NVRM: Xid (PCI:{pci(index)[:-2]}{where}): {code}, {who}{text}"


def info(*lines: str, gpus=None, **fields):
    return {
        "node": {"boot_id": BOOT_ID, "boot_time": BOOT_TIME.isoformat(), "collected_at": NOW.isoformat()},
        "gpus": [gpu(index) for index in range(8)] if gpus is None else gpus,
        "xids": parse_lines(lines, boot_time=BOOT_TIME, boot_id=BOOT_ID),
        "kernel_log": list(lines),
        "abandoned": [],
        "missing": [],
        **fields,
    }


def evidence(*lines: str, gpus=None, target=0, **fields):
    """What the stages hand to the diagnosis; `target` is an index into the eight GPUs, or None for the node as a whole."""
    return {
        "node": {"name": "gpu-1", "uid": "uid-1"},
        "gpu": None if target is None else {"uuid": uuid(target)},
        "alert": None,
        "info": info(*lines, gpus=gpus),
        "history": [],
        "released_at": None,
        "missing": [],
        **fields,
    }


def alert(code: int | None = None, index: int | None = 0, seconds: float = 60, **fields):
    return {
        "name": "GpuXidFatal",
        "xid": code,
        "gpu_uuid": None if index is None else uuid(index),
        "starts_at": at(seconds),
        **fields,
    }

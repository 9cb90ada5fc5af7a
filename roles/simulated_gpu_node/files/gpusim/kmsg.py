# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The kernel log of a simulated node: a file in the grammar of /dev/kmsg, `priority,sequence,microseconds since boot,flags;text`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

ERROR, INFO = 3, 6  # syslog levels
XID_TEXTS: dict[str, str] = json.loads(Path(__file__).with_name("xid_texts.json").read_text(encoding="utf-8"))
RECOVERY_TEXTS = {  # as Xid 154 writes NVML's recovery actions
    "none": "None", "gpu_reset": "GPU Reset Required", "node_reboot": "Node Reboot Required", "drain_p2p": "Drain P2P",
    "drain_and_reset": "Drain and Reset", "recover_imex_domain": "Recover IMEX Domain",
}  # fmt: skip


def write(path: Path, state: dict[str, Any], text: str, level: int = ERROR) -> None:
    """Append one record; the caller holds the state's lock, which also orders the log."""
    boot = state["boot"]
    micros = max(int((time.time() - boot["time"]) * 1e6), 0)
    with path.open("a", encoding="utf-8") as log:
        log.write(f"{level},{boot['kmsg_sequence']},{micros},-;{text}\n")
    boot["kmsg_sequence"] += 1


def boot(path: Path, state: dict[str, Any]) -> None:
    path.write_text("", encoding="utf-8")
    version = state["driver_version"]
    write(path, state, "Linux version 6.8.0-gpusim (simulated GPU node)", 5)
    write(path, state, f"NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build", 5)


def xid(path: Path, state: dict[str, Any], gpu: dict[str, Any], code: int, text: str | None, pid: int | None, name: str | None) -> None:
    """An Xid as the driver writes it: the first one of a GPU and boot is preceded by who the GPU is."""
    address = gpu["pci_bus_id"].rpartition(".")[0]
    if not gpu["introduced"]:
        write(path, state, f"NVRM: GPU at PCI:{address}: {gpu['uuid']}")
        write(path, state, f"NVRM: GPU Board Serial Number: {gpu['serial']}")
        gpu["introduced"] = True
    who = "" if pid is None else f"pid={pid}, name={name or '<unknown>'}, "
    write(path, state, f"NVRM: Xid (PCI:{address}): {code}, {who}{text or XID_TEXTS.get(str(code), XID_TEXTS['default'])}")


def reset(path: Path, state: dict[str, Any], gpu: dict[str, Any]) -> None:
    """A reset as the kernel's PCI core reports one."""
    write(path, state, f"nvidia {gpu['pci_bus_id']}: resetting", INFO)
    write(path, state, f"nvidia {gpu['pci_bus_id']}: reset done", INFO)

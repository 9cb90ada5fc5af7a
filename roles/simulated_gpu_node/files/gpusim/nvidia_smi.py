# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What of nvidia-smi programs call because NVML cannot do it: a GPU reset. A node's sbin/nvidia-smi is this, with its folder."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .node import Node, SimulatorError


def main() -> int:
    parser = argparse.ArgumentParser("nvidia-smi")
    parser.add_argument("node", type=Path, help="its folder")
    parser.add_argument("--gpu-reset", action="store_true", required=True)
    parser.add_argument("-i", dest="gpu", required=True, metavar="UUID or PCI address")
    args = parser.parse_args()
    node = Node(args.node.parent, args.node.name)
    try:
        found = [gpu for gpu in node.state()["gpus"] if args.gpu in (gpu["uuid"], gpu["pci_bus_id"])]
        if not found:
            raise SimulatorError(f"No devices were found for {args.gpu}")
        node.reset(found[0]["index"])
    except SimulatorError as error:
        print(error)
        return 255
    print(f"GPU 0000{found[0]['pci_bus_id']} was successfully reset.\nAll done.")
    return 0


if __name__ == "__main__":
    sys.exit(main())

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""What the node's units start: the probes as they are wanted now. Runs without Ansible, as the program that ebpf_probe_program installs."""

from __future__ import annotations

import contextlib
import os
import sys

from ansible_collections.gpuops.remediation.plugins.module_utils._exporter.unpack import unpacked

UNPACK_DIR = "GPUOPS_UNPACK_DIR"  # of the environment: a folder in memory, for who is started often


def main(config: str) -> int:
    """The exit status: whether all is as wanted."""
    folder = os.environ.get(UNPACK_DIR, "")
    if folder and os.path.isfile(sys.argv[0]):
        with contextlib.suppress(OSError):  # as it is it does the same, and costs more
            os.makedirs(folder, mode=0o700, exist_ok=True)
            os.execv(sys.executable, [sys.executable, "-I", str(unpacked(sys.argv[0], folder)), config])
    # Only now: whoever is about to run the unpacked copy needs none of it.
    from ansible_collections.gpuops.remediation.plugins.module_utils._bpf import upkeep

    return upkeep.main(config)

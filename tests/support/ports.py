# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Ports for what a test starts on loopback, each one's own for as long as the test's process lives."""

from __future__ import annotations

import random
import socket
from collections.abc import Sequence
from pathlib import Path

_claims: list[socket.socket] = []


def ports() -> range:
    """Those below the ones of which the kernel gives one to whoever asks for any: else it may be gone while its owner is down, or not up yet."""
    return range(10000, int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0]))


def free_port(among: Sequence[int] = ()) -> int:
    """A bound name claims it from other tests' processes: the kernel gives that back however this one ends, and it leaves no file."""
    among = among or ports()
    for port in random.SystemRandom().sample(among, len(among)):
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0gpuops-tests-port-{port}")
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            claim.close()
            continue
        _claims.append(claim)
        return port
    raise RuntimeError(f"no port is free of {among}")

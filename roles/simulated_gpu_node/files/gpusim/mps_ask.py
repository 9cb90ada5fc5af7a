# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What speaks to a simulated MPS daemon: by itself it is nvidia-cuda-mps-control without arguments. It needs nothing, so that it is quick."""

from __future__ import annotations

import json
import os
import socket
import sys
from typing import Any, Optional

CONTROL, SIMULATOR = "control", "gpusim"
DEFAULT_FOLDER = "/tmp/nvidia-mps"


def ask(folder: str, name: str, text: str) -> Optional[str]:
    """What the daemon of that folder says; None where there is none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(os.path.join(folder, name))
        except OSError:
            return None
        connection.sendall(text.encode())
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(1 << 16), b"")).decode()


def play(folder: str, do: str, **order: Any) -> dict[str, Any]:
    """What a CUDA program would do. `error` in the answer is the name of CUDA's."""
    told = ask(folder, SIMULATOR, json.dumps({"do": do, **order}))
    answer: dict[str, Any] = {"error": f"no MPS daemon in {folder}"} if told is None else json.loads(told)
    return answer


def main() -> int:
    told = ask(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", DEFAULT_FOLDER), CONTROL, sys.stdin.read())
    if told is None:
        sys.stderr.write("Cannot find MPS control daemon process\n")
        return 1
    sys.stdout.write(told)
    return 0


if __name__ == "__main__":
    sys.exit(main())

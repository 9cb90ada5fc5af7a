# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""What the node's units start: `export CONFIG` serves, `state CONFIG` reads once what only root may."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import Any

from ansible_collections.gpuops.remediation.plugins.module_utils._exporter.unpack import unpacked

UNPACK_DIR = "GPUOPS_UNPACK_DIR"  # of the environment, for who is started often


def main(command: str, config: str) -> int:
    cache = os.environ.get(UNPACK_DIR, "")
    if cache and os.path.isfile(sys.argv[0]):
        with contextlib.suppress(OSError):  # as it is it does the same, and costs more
            os.execv(sys.executable, [sys.executable, "-I", str(unpacked(sys.argv[0], cache)), command, config])
    return _run(command, config)


def _run(command: str, config: str) -> int:
    """Imports only what the command needs: whoever is about to run the unpacked copy needs none of it."""
    from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
    from ansible_collections.gpuops.remediation.plugins.module_utils._exporter.config import Config

    signal.signal(signal.SIGTERM, _end)
    try:
        if command == "export":
            from ansible_collections.gpuops.remediation.plugins.module_utils._exporter.exporter import serve

            serve(Config.load(config), _say)
        else:
            from ansible_collections.gpuops.remediation.plugins.module_utils._exporter.state import write

            write(Config.load(config))
    except (OSError, RemediationError) as error:
        sys.stderr.write(f"<3>{error}\n")  # an error in the journal, sd-daemon(3)
        return 1
    return 0


def _end(*_signal: Any) -> None:
    raise SystemExit(0)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()

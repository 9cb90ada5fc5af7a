# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""What a daemon's unit runs when it has started: sets the limits, which no file of MPS's keeps, and then lets clients in.

Runs without Ansible, as the program that mps_daemon installs.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable

from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._mps.control import Control
from ansible_collections.gpuops.remediation.plugins.module_utils._mps.errors import MpsError, NoDaemon
from ansible_collections.gpuops.remediation.plugins.module_utils._mps.limits import Settings

OPEN_MODE = 0o755
_START_SECONDS = 20.0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(config: str, tell: Callable[[str], None] = _say) -> int:
    """The exit status: whether the daemon has what is wanted. One that has not is stopped by its unit."""
    try:
        settle(json.loads(Path(config).read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        tell(f"cannot use {config}: {error}")
        return 1
    except RemediationError as error:
        tell(str(error))
        return 1
    return 0


def settle(config: Mapping[str, Any]) -> None:
    control = once_it_answers(Control(config["mps_control"], config["pipe_directory"]), _START_SECONDS).of_device(config["device"])
    bring_defaults(control, config["settings"])
    os.chmod(config["pipe_directory"], OPEN_MODE)


def once_it_answers(control: Control, seconds: float) -> Control:
    ends = time.monotonic() + seconds
    while True:
        try:
            control.servers()
            return control
        except NoDaemon:
            if time.monotonic() >= ends:
                raise
            time.sleep(0.05)


def bring_defaults(control: Control, settings: Settings) -> None:
    control.set_defaults(settings)
    have = control.defaults()
    wrong = {name: have[name] for name, value in settings.items() if have[name] != value}
    if wrong:
        raise MpsError(f"the MPS control daemon was told {dict(settings)} and has {wrong}")

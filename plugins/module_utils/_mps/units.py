# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""The control daemons as instances of one systemd unit, named by the device. systemd is never reloaded (S13).

The unit's file is the same for all; what differs is in a file of variables that systemd reads when an instance starts.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._mps.control import LOG, PIPE
from ansible_collections.gpuops.remediation.plugins.module_utils._mps.errors import UnitError

TEMPLATE = "gpuops-mps@.service"
RUNTIME, LOGS = "/run/gpuops-mps", "/var/log/gpuops-mps"  # a folder in each for every instance
_RUNNING = "/run/systemd/system"
_PATH = "/usr/bin:/bin"


def unit_of(uuid: str) -> str:
    return TEMPLATE.replace("@", f"@{uuid}")


def unit_text(control: str, program: str, config_dir: str) -> str:
    """The folder of the pipes stays closed until the program has set the limits and read them back: no client comes before them."""
    return f"""# Written by the module mps_daemon of gpuops.remediation.
[Unit]
Description=CUDA MPS for %i
Documentation=https://github.com/gpuops/remediation/tree/main/docs
After=nvidia-persistenced.service gpuops-mig.service

[Service]
Type=exec
EnvironmentFile={config_dir}/%i.env
RuntimeDirectory=gpuops-mps/%i
RuntimeDirectoryMode=0700
RuntimeDirectoryPreserve=restart
LogsDirectory=gpuops-mps/%i
ExecStart={control} -f
ExecStartPost={program} {config_dir}/%i.json
Restart=on-failure
RestartSec=1
TimeoutStopSec=10

[Install]
WantedBy=multi-user.target
"""


def variables(uuid: str, pipe_directory: str, log_directory: str) -> bytes:
    found = {"CUDA_VISIBLE_DEVICES": uuid, PIPE: pipe_directory, LOG: log_directory}
    return "".join(f"{name}={value}\n" for name, value in found.items()).encode()


@dataclass(frozen=True)
class Unit:
    active: bool
    needs_reload: bool


class Units:
    """`systemctl`, which waits until a job is done."""

    def __init__(self, systemctl: Optional[str] = None, timeout_seconds: float = 60) -> None:
        found = systemctl or shutil.which("systemctl", path=_PATH)
        if not found or not os.path.isdir(_RUNNING):
            raise UnitError("no systemd runs here: with managed_by=other the daemon is somebody else's to start")
        self._systemctl = found
        self._timeout_seconds = timeout_seconds

    def read(self, unit: str) -> Unit:
        told = dict(line.split("=", 1) for line in self._run("show", "--property=ActiveState,NeedDaemonReload", unit).splitlines())
        return Unit(told["ActiveState"] in ("active", "reloading"), told["NeedDaemonReload"] == "yes")

    def start(self, unit: str) -> None:
        self._run("start", unit)

    def stop(self, unit: str) -> None:
        self._run("stop", unit)

    def _run(self, *arguments: str) -> str:
        environment: Mapping[str, str] = {"LC_ALL": "C", "PATH": _PATH}
        command = [self._systemctl, "--no-ask-password", *arguments]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=self._timeout_seconds,
                check=False,
                env=environment,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UnitError(f"{' '.join(command)}: {error}") from error
        if done.returncode:
            raise UnitError(f"{' '.join(arguments)}: {done.stderr.strip()} (journalctl -u {arguments[-1]})")
        return done.stdout

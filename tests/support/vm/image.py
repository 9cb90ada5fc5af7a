# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The image of the node, booted once: machines start from there. Built when it is missing, outside the checkout."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ports import free_port

from vm import qemu
from vm.ssh import Ssh

_HERE = Path(__file__).resolve().parent
STATE = "state.zst"


def image() -> Path:
    """Its folder."""
    folder = _cache() / f"vm-{_key()}"
    _cache().mkdir(parents=True, exist_ok=True)
    with (_cache() / "vm.lock").open("w") as lock:  # several checkouts share it
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _build(folder, lock.fileno())
    return folder


def _cache() -> Path:
    return Path(os.environ.get("GPUOPS_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "gpuops")).expanduser().resolve()


def _key() -> str:
    """A saved state fits the very QEMU, and the very machine, that saved it."""
    parts = [qemu.version().encode(), *((_HERE / name).read_bytes() for name in ("image.sh", "newer_qemu.sh", "image.py", "qemu.py"))]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]


def _build(folder: Path, lock: int) -> None:
    begun = time.monotonic()
    print("building the image of a virtual machine (a minute)", file=sys.stderr, flush=True)
    unfinished = folder.with_name("vm-unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)  # of a build that was interrupted
    unfinished.mkdir()
    with (unfinished / "build.log").open("w") as log:
        done = subprocess.run(
            ["sh", _HERE / "image.sh", unfinished],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            check=False,
            pass_fds=[lock],  # nobody begins anew while one that has lost its parent still writes
        )
    if done.returncode:
        raise qemu.VmError(f"the image could not be built: {(unfinished / 'build.log').read_text()[-2000:]}")
    _boot(unfinished)
    unfinished.rename(folder)
    print(f"built in {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)


def _boot(folder: Path) -> None:
    """Once, and its state is kept together with the disk as it is then."""
    with tempfile.TemporaryDirectory(prefix="gpuops-vm-") as own:
        machine = qemu.Qemu(folder, Path(own), free_port(), writes=True)
        ssh = Ssh(folder, Path(own), machine.port)
        try:
            ssh.connect(machine.alive, 900)
            said = ssh.run("systemctl is-system-running --wait; systemctl --failed; sync", check=False, timeout_seconds=900)
            if not said.startswith("running"):
                raise qemu.VmError(f"the image does not boot cleanly: {said}")
            ssh.close()
            machine.save(folder / STATE)
        except (qemu.VmError, subprocess.TimeoutExpired) as error:
            raise qemu.VmError(f"{error}\n{machine.last_words()}") from error
        finally:
            ssh.close()
            machine.kill()

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""GPU lines of the kernel log, with their time. What they mean is the business of the Xid parser."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import isoformat
from ansible_collections.gpuops.remediation.plugins.module_utils._node.watchdog import Emit
from ansible_collections.gpuops.remediation.plugins.module_utils._xid.lines import parse_line

_GPU_LINE = re.compile(r"NVRM|\bnvidia\b|nvidia-|\bS?Xid\b", re.IGNORECASE)
_RECORD = re.compile(r"^(\d+),(\d+),(\d+),[^;]*;(.*)$")
_ESCAPE = re.compile(r"\\x([0-9a-f]{2})")


class KernelLogError(RemediationError):
    kind = "kernel_log"


@dataclass(frozen=True)
class Record:
    sequence: int  # since boot
    seconds: float  # since boot
    text: str


def parse_record(line: str) -> Record | None:
    """One record of /dev/kmsg, `prio,seq,usec,flags;text`; None for anything else (continuation lines begin with a space)."""
    match = _RECORD.match(line)
    if not match:
        return None
    text = _ESCAPE.sub(lambda escape: chr(int(escape.group(1), 16)), match.group(4))
    return Record(int(match.group(2)), int(match.group(3)) / 1e6, text)


def read_lines(path: str) -> Iterator[str]:
    """Every record that the kernel still has; a device gives one at each read, a file all at once."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise KernelLogError(f"cannot open {path}: {error}") from error
    try:
        if not stat.S_ISCHR(os.fstat(fd).st_mode):
            with open(fd, errors="replace", closefd=False) as file:
                yield from (line.rstrip("\n") for line in file)
            return
        while True:
            try:
                yield os.read(fd, 1 << 14).decode(errors="replace").split("\n", 1)[0]
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.EPIPE:  # records were overwritten before they were read: go on with the oldest left
                    raise KernelLogError(f"cannot read {path}: {error}") from error
    finally:
        os.close(fd)


def collect(path: str, boot_time: float, boot_id: str, since: float | None, emit: Emit) -> None:
    for line in read_lines(path):
        record = parse_record(line)
        if record is None or not _GPU_LINE.search(record.text):
            continue
        seconds = boot_time + record.seconds
        if since is not None and seconds < since + 1e-6:  # a time that we returned names its own line
            continue
        emit({"line": line, "xid": _event(record.text, isoformat(seconds), boot_id)})


def _event(text: str, time: str, boot_id: str) -> dict[str, Any] | None:
    event = parse_line(text)
    return {**event, "source": "kernel_log", "time": time, "boot_id": boot_id} if event else None

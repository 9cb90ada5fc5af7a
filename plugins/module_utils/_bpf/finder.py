# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Looks for copies of libcuda in a child under a time limit: /proc/PID/maps of a hung process can block its reader for ever."""

from __future__ import annotations

import os
import resource
from collections.abc import Collection
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.errors import ProbeError, SymbolMissing
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.functions import REQUIRED
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.libraries import Copy, Found, scan
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.probes import FUNCTIONS
from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import ProcFs
from ansible_collections.gpuops.remediation.plugins.module_utils._node.statedir import StateDir
from ansible_collections.gpuops.remediation.plugins.module_utils._node.watchdog import Watchdog

_SOURCE = "libraries"
_SEARCH_BYTES = 256 << 20


class SearchFailed(ProbeError):
    """Not every copy is known, so that neither what is missing nor what is too much can be told."""

    kind = "search_failed"


def find(proc: ProcFs, state: StateDir, timeout_seconds: float) -> Found:
    def collect(emit: Any) -> None:
        _limit_memory()
        scan(proc.root, sorted(proc.pids()), FUNCTIONS, emit)

    answers, _abandoned = Watchdog(state, timeout_seconds).collect({_SOURCE: collect})
    answer, found = answers[_SOURCE], Found()
    for item in answer.items:
        found.add(item)
    if answer.why:
        at = [item["reading"] for item in answer.items if "reading" in item]
        where = f"at pid {at[-1]}" if at else "on the host"
        raise SearchFailed(f"cannot look for copies of libcuda, {where}: {answer.why}", copies=[copy.path for copy in found.copies])
    return found


def _limit_memory() -> None:
    """Of the child, should a file that somebody made up get past every other bound."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE") + _SEARCH_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (size, size))


def named(paths: Collection[str]) -> Found:
    """The copies at these paths, and no others."""
    found = Found()
    for path in paths:
        try:
            copy = Copy.read(path, FUNCTIONS)
        except (OSError, ValueError) as error:
            raise SymbolMissing(f"{path} is not a library that can be probed: {error}", path=path) from error
        if not copy.is_driver:
            raise SymbolMissing(f"{path} does not export {' and '.join(name for name in REQUIRED if name not in copy.sites)}", path=path)
        found.copies.append(copy)
    return found

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Breaking the glass (S19): one node is dealt with while the ledger is away, by a ledger of its own, until the ledger takes that over."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.errors import AnothersLedger, LedgerUnavailable, LockHeld
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.times import utc_now
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.argspec import open_ledger, open_ledger_under_lock
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.database import Database
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.opening import open_incidents, wanted
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.store import Ledger
from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import ProcFs

with contextlib.suppress(ImportError):  # said by _ledger.database
    from sqlalchemy.exc import IntegrityError

_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_RECONCILE = "ansible-playbook gpuops.remediation.reconcile"


class BadNodeName(RemediationError):
    kind = "bad_node_name"


def opened(params: Mapping[str, Any], check_mode: bool) -> dict[str, Any]:
    """The module's result: the incidents in the ledger, or where it is away and an operator says so, in the named node's own."""
    glass = params["break_glass"]
    try:
        ledger = open_ledger_under_lock(params, check_mode)
        if glass:
            ledger.glass_wanted(params["node"], glass["who"], glass["why"])
        return open_incidents(ledger, params)
    except AnothersLedger:
        raise  # it is at work elsewhere, and would never take over what is done here
    except LedgerUnavailable as error:
        if not glass or check_mode:
            raise
        return _broken(params, glass, str(error))


def _broken(params: Mapping[str, Any], glass: Mapping[str, Any], error: str) -> dict[str, Any]:
    """The operator's word stands for mode act and for a breaker slot, which others count once the ledger knows of it."""
    who, why, node = glass["who"], glass["why"], wanted(params, utc_now()).place.node
    url = "sqlite:///%s" % _own_file(glass["ledger_dir"], node)
    ledger = open_ledger(url)
    ledger.glass_wanted(node, who, why)
    ledger.set_mode("act", who, why)
    run = ProcFs("/proc").process(os.getppid())  # Ansible's own process: this is one of its workers
    if run:
        ledger.glass_run(run.pid, run.start_ticks, who, why)
    result = open_incidents(ledger, params)
    for record in result["incidents"]:
        if record["open"]:  # one of a node that is opted out has ended already
            ledger.take_slot(record["id"], node, record["groups"])
            told = {"node": node, "host": record["host"], "who": who, "why": why, "reason": error, "incident_id": record["id"]}
            ledger.notify("glass:%s" % record["id"], "glass_broken", {**told, "next_command": _RECONCILE}, record["id"])
    return {**result, "glass": {"ledger_url": url, "reason": error}}


def _own_file(directory: str, node: str) -> Path:
    if not _FILE_NAME.fullmatch(node):
        raise BadNodeName("the glass cannot be broken for node %r: such a name cannot name a file" % node)
    try:
        Path(directory).mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise LedgerUnavailable("%s cannot be made, so nothing is changed: %s" % (directory, error.strerror)) from error
    return Path(directory) / (node + ".db")


def absorbed(ledger: Ledger, directory: str) -> dict[str, Any]:
    """The module's result for the ledgers in a folder. One that cannot be read stays for people, and keeps nobody from the others."""
    ids: list[str] = []
    gone, left = [], []
    for path in _files(ledger, directory):
        try:
            ids += _absorb(ledger, path)
            gone.append(str(path))
        except LockHeld as error:
            left.append({"file": str(path), "why": str(error)})
        except (LedgerUnavailable, IntegrityError, ValueError, TypeError) as error:
            left.append({"file": str(path), "why": str(error).splitlines()[0]})
            key = "glass_unreadable:%s:%d" % (path, path.stat().st_ino)  # another file of that name is told again
            ledger.notify(key, "glass_unreadable", left[-1])  # where it is the ledger that is away, this says so
    diff = {"before": {"ledgers": gone}, "after": {"incidents": ids}}
    return {"changed": bool(gone), "absorbed": ids, "left": left, "diff": diff}


def _files(ledger: Ledger, directory: str) -> list[Path]:
    """None for a run that itself goes by one of them."""
    folder = Path(directory).resolve()
    return [] if Path(ledger.where).resolve().parent == folder else sorted(folder.glob("*.db"))


def _absorb(ledger: Ledger, path: Path) -> list[str]:
    other = Database.open("sqlite:///%s" % path, check_mode=ledger.check_mode, adopt="taken over")
    try:
        ids = ledger.absorb(other, ProcFs("/proc").alive)  # only this machine's controller has its private ledgers
    finally:
        other.close()
    if not ledger.check_mode:
        for suffix in ("-wal", "-shm", ""):  # SQLite's own; the ledger itself last, so that whoever dies here begins again
            with contextlib.suppress(FileNotFoundError):
                os.unlink("%s%s" % (path, suffix))
    return ids

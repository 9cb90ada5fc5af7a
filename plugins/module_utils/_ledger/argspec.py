# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""The ledger's option, and what it stands for. The ledger itself is imported where it is opened: no node has SQLAlchemy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import missing_required_lib
from ansible_collections.gpuops.remediation.plugins.module_utils._errors import MissingLibrary

if TYPE_CHECKING:
    from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.store import Ledger

DEFAULT_URL = "sqlite:////var/lib/gpuops/ledger.db"

# A URL may carry a password.
LEDGER_SPEC: dict[str, dict[str, Any]] = {"ledger_url": {"default": DEFAULT_URL, "no_log": True}}
LEDGER_LOCK_SPEC: dict[str, dict[str, Any]] = {"node": {}, "lock_token": {"type": "int", "no_log": False}, "lock_holder": {}}
CORRELATION_SPEC: dict[str, dict[str, Any]] = {
    "correlation": {
        "type": "dict",
        "options": {"nodes": {"type": "int", "default": 3}, "seconds": {"type": "float", "default": 15.0}},
        "default": {},
    }
}
BREAKER_SPEC: dict[str, dict[str, Any]] = {
    "breaker": {"type": "dict", "options": {"nodes": {"type": "int"}, "percent": {"type": "float"}, "window_seconds": {"type": "int"}}}
}
LEDGER_LOCK_NEEDS = {"lock_token": ["node", "lock_holder"]}


def open_ledger(url: str, check_mode: bool = False, adopt: str = "") -> Ledger:
    """The ledger at `url`; in check mode nothing is written to it, and one that does not exist reads as new."""
    from ansible_collections.gpuops.remediation.plugins.module_utils._ledger import database, store

    if database.LIBRARY_ERROR:
        raise MissingLibrary(missing_required_lib("SQLAlchemy, alembic (and psycopg for PostgreSQL)"), exception=database.LIBRARY_ERROR)
    return store.Ledger.open(url, check_mode=check_mode, adopt=adopt)


def open_ledger_under_lock(params: Mapping[str, Any], check_mode: bool) -> Ledger:
    """The ledger for who works under a node's lock, if that is said; it refuses who has lost it."""
    ledger = open_ledger(params["ledger_url"], check_mode)
    return ledger if params["lock_token"] is None else ledger.under(params["node"], params["lock_holder"], params["lock_token"])

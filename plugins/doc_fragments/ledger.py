# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    """Where incidents, their changes and their rules are kept."""

    DOCUMENTATION = r"""
requirements:
  - SQLAlchemy >= 2.0
  - alembic >= 1.13
  - psycopg >= 3.1, for a ledger in PostgreSQL
options:
  ledger_url:
    description:
      - The ledger, as SQLAlchemy writes the addresses of databases.
      - An SQLite file serves one controller, and refuses a second one. Several controllers share a PostgreSQL database
        (V(postgresql://user:password@host/gpuops)).
      - In check mode nothing is written to it, and one that does not exist yet reads as a new one.
    type: str
    default: sqlite:////var/lib/gpuops/ledger.db
"""

    LOCK = r"""
options:
  node:
    description: The node whose lock O(lock_token) is of.
    type: str
  lock_token:
    description:
      - The token of the lock under which the run works, as M(gpuops.remediation.node_lock) returned it and has told the ledger.
        Nothing is written once somebody else has the lock, and else the ledger's record of it is renewed.
      - Requires O(node) and O(lock_holder).
    type: int
  lock_holder:
    description: Who holds that lock.
    type: str
"""

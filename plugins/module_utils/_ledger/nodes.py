# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""The nodes that alerts may name, as the last run's inventory and the orchestrator knew them: what has no inventory of its own reads them here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.database import Database

try:
    import sqlalchemy as sa
    from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.tables import NODES
except ImportError:  # said by _ledger.database
    pass

_NAMES = ("host", "uid", "managed", "groups")


class Nodes(Database):
    def nodes(self) -> dict[str, dict[str, Any]]:
        """By name, as M(gpuops.remediation.incident) takes its inventory; empty before the first run."""
        with self.read() as connection:
            return self._nodes(connection)

    def _nodes(self, connection: sa.Connection) -> dict[str, dict[str, Any]]:
        return {row.node: {name: getattr(row, name) for name in _NAMES} for row in connection.execute(sa.select(NODES))}

    def keep_nodes(self, inventory: Mapping[str, Any]) -> bool:
        """These and no others; nothing is written while they are the same."""
        wanted = {node: {name: (entry or {}).get(name) for name in _NAMES} for node, entry in inventory.items()}
        if wanted == self.nodes():
            return False
        with self.write() as connection:
            connection.execute(sa.delete(NODES))
            if wanted:
                connection.execute(sa.insert(NODES), [{"node": node, **entry} for node, entry in wanted.items()])
        return True

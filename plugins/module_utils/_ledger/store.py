# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""The ledger: the one place where incidents, their changes and their rules are kept."""

from __future__ import annotations

from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.absorb import Absorbing
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.figures import Watched
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.nodes import Nodes
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.sync import Sync


class Ledger(Absorbing, Sync, Nodes, Watched):
    """Settings, outbox, incidents, stages, changes, inbox, nodes and locks over one database; `Ledger.open(url)`."""

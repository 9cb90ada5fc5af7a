# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Runs Alembic from imported modules: inside a module's zip there is no folder that Alembic could list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.migrations import (
    v0001_first,
    v0002_channels,
    v0003_reception,
    v0004_nodes,
    v0005_sync,
    v0006_queue,
)

if TYPE_CHECKING:
    import sqlalchemy as sa

VERSIONS = (v0001_first, v0002_channels, v0003_reception, v0004_nodes, v0005_sync, v0006_queue)
HEAD = VERSIONS[-1].revision


def upgrade(connection: sa.Connection) -> None:
    """Bring the database to HEAD, in the caller's transaction."""
    from alembic.operations import Operations
    from alembic.runtime.migration import MigrationContext, MigrationStep
    from alembic.script.base import Script
    from alembic.script.revision import RevisionMap

    scripts = RevisionMap(lambda: [Script(module, module.revision, module.__name__) for module in VERSIONS])

    def steps(heads: Any, context: MigrationContext) -> list[Any]:
        todo: Any = scripts.iterate_revisions(HEAD, heads, implicit_base=True)
        return [MigrationStep.upgrade_from_script(scripts, script) for script in reversed(list(todo))]

    context = MigrationContext.configure(connection, opts={"fn": steps})
    with Operations.context(context):
        context.run_migrations()

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""The inventory for the event source, and inbox rows that wait for others of their kind."""

from __future__ import annotations

try:
    import sqlalchemy as sa
    from alembic import op
except ImportError:  # said by _ledger.database
    pass

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("inbox", sa.Column("patient", sa.Boolean, nullable=False, server_default=sa.false()))
    op.create_table(
        "nodes",
        sa.Column("node", sa.String(253), primary_key=True),
        sa.Column("host", sa.String(253)),
        sa.Column("uid", sa.String(253)),
        sa.Column("managed", sa.JSON),
        sa.Column("groups", sa.JSON),
    )

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""What the event source needs to know an inbox row by: whose alerts it holds, and that it was delivered before."""

from __future__ import annotations

try:
    import sqlalchemy as sa
    from alembic import op
except ImportError:  # said by _ledger.database
    pass

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("inbox", sa.Column("node", sa.String(253)))
    op.add_column("inbox", sa.Column("firing", sa.Boolean, nullable=False, server_default=sa.true()))
    op.add_column("inbox", sa.Column("digest", sa.String(64)))
    op.add_column("inbox", sa.Column("deliveries", sa.Integer, nullable=False, server_default="1"))
    op.create_index("inbox_digest", "inbox", ["digest"], unique=True)
    undecided = sa.text("handled_at IS NULL")
    op.create_index("inbox_undecided", "inbox", ["id"], sqlite_where=undecided, postgresql_where=undecided)

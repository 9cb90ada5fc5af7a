# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Until when each source of alerts was asked for what nobody has told of."""

from __future__ import annotations

try:
    import sqlalchemy as sa
    from alembic import op
except ImportError:  # said by _ledger.database
    pass

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "syncs",
        sa.Column("source", sa.String(40), primary_key=True),
        sa.Column("synced_at", sa.DateTime(timezone=True), nullable=False),
    )

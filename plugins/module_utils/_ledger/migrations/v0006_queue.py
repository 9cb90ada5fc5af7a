# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""When somebody last wanted an incident that waits to run."""

from __future__ import annotations

try:
    import sqlalchemy as sa
    from alembic import op
except ImportError:  # said by _ledger.database
    pass

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("incidents", sa.Column("asked_at", sa.DateTime(timezone=True)))

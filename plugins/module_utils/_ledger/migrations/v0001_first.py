# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""The first tables. A migration is history: it is never edited once released, however the code's tables change."""

from __future__ import annotations

try:
    import sqlalchemy as sa
    from alembic import op
except ImportError:  # said by _ledger.database
    pass

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "settings",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.String(40), nullable=False, index=True),
        sa.Column("value", sa.JSON, nullable=False),
        sa.Column("set_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("set_by", sa.String(200), nullable=False),
        sa.Column("why", sa.Text, nullable=False),
    )
    op.create_table(
        "inbox",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("received_at", sa.DateTime(timezone=True), nullable=False, index=True),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("handled_at", sa.DateTime(timezone=True)),
        sa.Column("error", sa.Text),
    )
    op.create_table(
        "incidents",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("kind", sa.String(10), nullable=False),
        sa.Column("state", sa.String(30), nullable=False, index=True),
        sa.Column("open_key", sa.Text, unique=True),
        sa.Column("asked_key", sa.Text, nullable=False, index=True),
        sa.Column("round", sa.Integer, nullable=False),
        sa.Column("node", sa.String(253), nullable=False, index=True),
        sa.Column("node_uid", sa.String(253), nullable=False),
        sa.Column("host", sa.String(253)),
        sa.Column("nodes", sa.JSON, nullable=False),
        sa.Column("groups", sa.JSON, nullable=False),
        sa.Column("gpu", sa.String(100), nullable=False, index=True),
        sa.Column("pci_bus_id", sa.String(20)),
        sa.Column("serial", sa.String(100)),
        sa.Column("slot", sa.String(40)),
        sa.Column("domain", sa.String(20), nullable=False),
        sa.Column("scope", sa.String(20)),
        sa.Column("mode", sa.String(10), nullable=False),
        sa.Column("alert", sa.JSON),
        sa.Column("verdict", sa.JSON),
        sa.Column("opened_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("received_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("starts_at", sa.DateTime(timezone=True)),
        sa.Column("clock_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("deadline_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("detected_late_seconds", sa.Integer, nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True)),
        sa.Column("closed_at", sa.DateTime(timezone=True), index=True),
        sa.Column("reason", sa.Text),
        sa.Column("release", sa.JSON),
    )
    op.create_table(
        "alerts",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("starts_at", sa.DateTime(timezone=True)),
        sa.Column("status", sa.String(10), nullable=False),
        sa.Column("inbox_id", sa.Integer, sa.ForeignKey("inbox.id", ondelete="SET NULL")),
        sa.Column("received_at", sa.DateTime(timezone=True), nullable=False, index=True),
        sa.Column("deliveries", sa.Integer, nullable=False),
        sa.Column("facts", sa.JSON, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("incident_id", sa.String(40), sa.ForeignKey("incidents.id", ondelete="SET NULL"), index=True),
        sa.UniqueConstraint("fingerprint", "starts_at", "status", name="alerts_delivery"),
    )
    op.create_table(
        "stages",
        sa.Column("incident_id", sa.String(40), sa.ForeignKey("incidents.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("round", sa.Integer, primary_key=True),
        sa.Column("name", sa.String(20), primary_key=True),
        sa.Column("state", sa.String(10), nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("outcome", sa.String(10)),
        sa.Column("error_kind", sa.String(40)),
        sa.Column("reason", sa.Text),
        sa.Column("data", sa.JSON, nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True)),
    )
    op.create_table(
        "changes",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("target", sa.Text, nullable=False, index=True),
        sa.Column("open_target", sa.Text, unique=True),
        sa.Column("incident_id", sa.String(40), nullable=False),
        sa.Column("before", sa.JSON),
        sa.Column("wanted", sa.JSON),
        sa.Column("after", sa.JSON),
        sa.Column("status", sa.String(10), nullable=False),
        sa.Column("intended_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("applied_at", sa.DateTime(timezone=True)),
        sa.Column("reverted_at", sa.DateTime(timezone=True)),
        sa.Column("note", sa.Text),
    )
    op.create_table(
        "change_owners",
        sa.Column("change_id", sa.Integer, sa.ForeignKey("changes.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("incident_id", sa.String(40), sa.ForeignKey("incidents.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("disowned_at", sa.DateTime(timezone=True)),
    )
    op.create_table(
        "locks",
        sa.Column("node", sa.String(253), primary_key=True),
        sa.Column("holder", sa.String(253)),
        sa.Column("token", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_table(
        "breaker_slots",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("node", sa.String(253), nullable=False),
        sa.Column("incident_id", sa.String(40), nullable=False),
        sa.Column("groups", sa.JSON, nullable=False),
        sa.Column("taken_at", sa.DateTime(timezone=True), nullable=False, index=True),
    )
    op.create_table(
        "outbox",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("key", sa.Text, nullable=False, unique=True),
        sa.Column("incident_id", sa.String(40)),
        sa.Column("topic", sa.String(40), nullable=False),
        sa.Column("payload", sa.JSON, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=False, index=True),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("sent_at", sa.DateTime(timezone=True)),
        sa.Column("error", sa.Text),
    )
    op.create_table(
        "failures",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("node", sa.String(253), nullable=False, index=True),
        sa.Column("gpu_uuid", sa.String(100), nullable=False),
        sa.Column("code", sa.Integer),
        sa.Column("program", sa.Text, nullable=False),
        sa.Column("failed_at", sa.DateTime(timezone=True), nullable=False, index=True),
        sa.Column("incident_id", sa.String(40), nullable=False),
        sa.UniqueConstraint("gpu_uuid", "code", "program", "failed_at", name="failures_once"),
    )


def downgrade() -> None:
    for table in (
        "failures",
        "outbox",
        "breaker_slots",
        "locks",
        "change_owners",
        "changes",
        "stages",
        "alerts",
        "incidents",
        "inbox",
        "settings",
    ):
        op.drop_table(table)

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""The ledger's tables as the code uses them; how a database gets them is in `migrations`."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any, Optional

try:
    import sqlalchemy as sa
except ImportError:  # said by _ledger.database
    pass
else:

    class UtcTime(sa.types.TypeDecorator[datetime]):
        """Aware times in UTC; SQLite would forget the zone."""

        impl = sa.DateTime(timezone=True)
        cache_ok = True

        def process_bind_param(self, value: Optional[datetime], dialect: Any) -> Optional[datetime]:
            return value.astimezone(timezone.utc) if value else None

        def process_result_value(self, value: Optional[datetime], dialect: Any) -> Optional[datetime]:
            if value is None:
                return None
            return value.astimezone(timezone.utc) if value.tzinfo else value.replace(tzinfo=timezone.utc)

    METADATA = sa.MetaData()

    # Append only: the newest row of a name is its value, the older ones say who had set what, and why.
    SETTINGS = sa.Table(
        "settings",
        METADATA,
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.String(40), nullable=False, index=True),
        sa.Column("value", sa.JSON, nullable=False),
        sa.Column("set_at", UtcTime, nullable=False),
        sa.Column("set_by", sa.String(200), nullable=False),
        sa.Column("why", sa.Text, nullable=False),
    )

    # Messages as they came, committed before they are judged.
    INBOX = sa.Table(
        "inbox",
        METADATA,
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("received_at", UtcTime, nullable=False, index=True),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("handled_at", UtcTime),
        sa.Column("error", sa.Text),
        # What the event source knows a row by; a message from a file has neither.
        sa.Column("node", sa.String(253)),
        sa.Column("firing", sa.Boolean, nullable=False, server_default=sa.true()),
        sa.Column("digest", sa.String(64)),
        sa.Column("deliveries", sa.Integer, nullable=False, server_default="1"),
        sa.Column("patient", sa.Boolean, nullable=False, server_default=sa.false()),  # waits for others of its kind
        sa.Index("inbox_digest", "digest", unique=True),
        sa.Index(
            "inbox_undecided", "id", sqlite_where=sa.text("handled_at IS NULL"), postgresql_where=sa.text("handled_at IS NULL")
        ),  # asked for every second
    )

    # Until when each source was asked what fires.
    SYNCS = sa.Table(
        "syncs",
        METADATA,
        sa.Column("source", sa.String(40), primary_key=True),
        sa.Column("synced_at", UtcTime, nullable=False),
    )

    INCIDENTS = sa.Table(
        "incidents",
        METADATA,
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("kind", sa.String(10), nullable=False),  # fault | group
        sa.Column("state", sa.String(30), nullable=False, index=True),
        sa.Column("open_key", sa.Text, unique=True),  # null once closed: one open incident a fault
        sa.Column("asked_key", sa.Text, nullable=False, index=True),  # the key at opening, before the node was asked
        sa.Column("round", sa.Integer, nullable=False),  # grows when a held incident is diagnosed anew
        sa.Column("node", sa.String(253), nullable=False, index=True),  # a group's name where kind is group
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
        sa.Column("mode", sa.String(10), nullable=False),  # when it was opened or diagnosed anew, or what forbade a stage since
        sa.Column("alert", sa.JSON),
        sa.Column("verdict", sa.JSON),
        sa.Column("opened_at", UtcTime, nullable=False),
        sa.Column("received_at", UtcTime, nullable=False),
        sa.Column("starts_at", UtcTime),
        sa.Column("clock_at", UtcTime, nullable=False),  # when the time began to run, or the waiting
        sa.Column("asked_at", UtcTime),  # when somebody last wanted it to run; null once a run has left it waiting
        sa.Column("deadline_at", UtcTime, nullable=False),
        sa.Column("detected_late_seconds", sa.Integer, nullable=False),
        sa.Column("ended_at", UtcTime),
        sa.Column("closed_at", UtcTime, index=True),
        sa.Column("reason", sa.Text),
        sa.Column("release", sa.JSON),
    )

    # The inventory of the last run, for the event source.
    NODES = sa.Table(
        "nodes",
        METADATA,
        sa.Column("node", sa.String(253), primary_key=True),
        sa.Column("host", sa.String(253)),
        sa.Column("uid", sa.String(253)),
        sa.Column("managed", sa.JSON),
        sa.Column("groups", sa.JSON),
    )

    # One row a delivery: an episode is (fingerprint, starts_at), a delivery adds the status.
    ALERTS = sa.Table(
        "alerts",
        METADATA,
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("starts_at", UtcTime),
        sa.Column("status", sa.String(10), nullable=False),  # firing | resolved | held
        sa.Column("inbox_id", sa.Integer, sa.ForeignKey("inbox.id", ondelete="SET NULL")),
        sa.Column("received_at", UtcTime, nullable=False, index=True),
        sa.Column("deliveries", sa.Integer, nullable=False),
        sa.Column("facts", sa.JSON, nullable=False),
        sa.Column("reason", sa.Text),  # of a held one, or of one that fires and was left for a silence
        sa.Column("incident_id", sa.String(40), sa.ForeignKey("incidents.id", ondelete="SET NULL"), index=True),
        sa.UniqueConstraint("fingerprint", "starts_at", "status", name="alerts_delivery"),
    )

    STAGES = sa.Table(
        "stages",
        METADATA,
        sa.Column("incident_id", sa.String(40), sa.ForeignKey("incidents.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("round", sa.Integer, primary_key=True),
        sa.Column("name", sa.String(20), primary_key=True),
        sa.Column("state", sa.String(10), nullable=False),  # started | finished
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("outcome", sa.String(10)),
        sa.Column("error_kind", sa.String(40)),
        sa.Column("reason", sa.Text),
        sa.Column("data", sa.JSON, nullable=False),
        sa.Column("started_at", UtcTime, nullable=False),
        sa.Column("finished_at", UtcTime),
    )

    CHANGES = sa.Table(
        "changes",
        METADATA,
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("target", sa.Text, nullable=False, index=True),
        sa.Column("open_target", sa.Text, unique=True),  # null once reverted: one open change a target
        sa.Column("incident_id", sa.String(40), nullable=False),  # who made it first
        sa.Column("before", sa.JSON),
        sa.Column("wanted", sa.JSON),
        sa.Column("after", sa.JSON),
        sa.Column("status", sa.String(10), nullable=False),  # intended | applied | reverted
        sa.Column("intended_at", UtcTime, nullable=False),
        sa.Column("applied_at", UtcTime),
        sa.Column("reverted_at", UtcTime),
        sa.Column("note", sa.Text),
    )

    OWNERS = sa.Table(
        "change_owners",
        METADATA,
        sa.Column("change_id", sa.Integer, sa.ForeignKey("changes.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("incident_id", sa.String(40), sa.ForeignKey("incidents.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("since", UtcTime, nullable=False),
        sa.Column("disowned_at", UtcTime),
    )

    # Rows stay after a release, so that the token only grows.
    LOCKS = sa.Table(
        "locks",
        METADATA,
        sa.Column("node", sa.String(253), primary_key=True),
        sa.Column("holder", sa.String(253)),  # null: free
        sa.Column("token", sa.BigInteger, nullable=False),
        sa.Column("expires_at", UtcTime, nullable=False),
    )

    SLOTS = sa.Table(
        "breaker_slots",
        METADATA,
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("node", sa.String(253), nullable=False),
        sa.Column("incident_id", sa.String(40), nullable=False),
        sa.Column("groups", sa.JSON, nullable=False),
        sa.Column("taken_at", UtcTime, nullable=False, index=True),
    )

    OUTBOX = sa.Table(
        "outbox",
        METADATA,
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("key", sa.Text, nullable=False, unique=True),  # once an incident and state
        sa.Column("incident_id", sa.String(40)),
        sa.Column("topic", sa.String(40), nullable=False),
        sa.Column("payload", sa.JSON, nullable=False),
        sa.Column("created_at", UtcTime, nullable=False),  # of one that is held back: when it may first be sent
        sa.Column("due_at", UtcTime, nullable=False, index=True),  # not before; a claim moves it on
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("sent_at", UtcTime),
        sa.Column("error", sa.Text),
        sa.Column("channels", sa.JSON),  # those configured at the last claim or told before, by name: whether it was told
    )

    # Programs that failed on a GPU: three different ones within a day are a hint at the hardware (S14).
    FAILURES = sa.Table(
        "failures",
        METADATA,
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("node", sa.String(253), nullable=False, index=True),
        sa.Column("gpu_uuid", sa.String(100), nullable=False),
        sa.Column("code", sa.Integer),
        sa.Column("program", sa.Text, nullable=False),
        sa.Column("failed_at", UtcTime, nullable=False, index=True),
        sa.Column("incident_id", sa.String(40), nullable=False),
        sa.UniqueConstraint("gpu_uuid", "code", "program", "failed_at", name="failures_once"),
    )

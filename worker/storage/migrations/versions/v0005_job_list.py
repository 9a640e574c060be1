"""Columns and indexes of the job list: arrival time, and the caller's metadata.

Revision ID: 0005
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

LATER_FIELDS = (
    *("timeout_seconds", "expires_seconds", "wants_previews", "parameters"),
    *("deadline_ms", "deadline_turn_ms", "is_split"),
)
"""Fields of requests that came with these tables and those after them."""


def upgrade() -> None:
    op.add_column("jobs", sa.Column("queued_ms", sa.BigInteger, nullable=False, server_default="0"))
    op.add_column("jobs", sa.Column("metadata", sa.Text, nullable=False, server_default="{}"))
    if op.get_bind().dialect.name == "sqlite":  # PostgreSQL has no jobs from before
        op.execute("UPDATE jobs SET queued_ms = json_extract(times, '$.queued_at_ms')")
    op.create_index("jobs_by_state", "jobs", ["state", "queued_ms", "number"])
    op.create_index("jobs_by_owner", "jobs", ["owner", "state", "queued_ms", "number"])


def downgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":  # the older version reads no job with a field that it does not know
        names = ", ".join(f"'$.{name}'" for name in LATER_FIELDS)
        op.execute(f"UPDATE jobs SET request = json_remove(request, {names})")
        op.execute("UPDATE jobs SET credentials = json_remove(credentials, '$.put') WHERE credentials IS NOT NULL")
    op.drop_index("jobs_by_owner", "jobs")
    op.drop_index("jobs_by_state", "jobs")
    op.drop_column("jobs", "metadata")
    op.drop_column("jobs", "queued_ms")

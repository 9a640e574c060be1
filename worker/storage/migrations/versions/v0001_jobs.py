"""Jobs, the webhook outbox and small facts.

Revision ID: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

MILLISECONDS = sa.BigInteger().with_variant(sa.Integer, "sqlite")
LIVE = sa.text("finished_ms IS NULL")


def upgrade() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("number", MILLISECONDS, nullable=False, unique=True),
        sa.Column("body_hash", sa.Text, nullable=False),
        sa.Column("request", sa.Text, nullable=False),
        sa.Column("prompt", sa.Text, nullable=False),
        sa.Column("credentials", sa.Text),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("stage", sa.Text, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("seq", sa.Integer, nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("outputs", sa.Text, nullable=False),
        sa.Column("engine_response", sa.Text, nullable=False),
        sa.Column("failure", sa.Text),
        sa.Column("times", sa.Text, nullable=False),
        sa.Column("finished_ms", MILLISECONDS),
    )
    op.create_index("jobs_unfinished", "jobs", ["number"], sqlite_where=LIVE, postgresql_where=LIVE)
    op.create_index("jobs_finished", "jobs", ["finished_ms"])
    op.create_table(
        "webhooks",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("job_id", sa.Text, nullable=False),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("secret", sa.Text),
        sa.Column("timeout_seconds", sa.Float, nullable=False),
        sa.Column("is_trusted", sa.Boolean, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("created_ms", MILLISECONDS, nullable=False),
        sa.Column("next_at_ms", MILLISECONDS, nullable=False),
        sa.Column("last_error", sa.Text, nullable=False),
    )
    op.create_index("webhooks_due", "webhooks", ["state", "next_at_ms"])
    op.create_table(
        "facts",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
    )

"""Columns for the owner of a job, and for the requested id if the job is stored under another.

Jobs from before have no owner (NULL). They are visible to every key, as they were then, until they expire.

Revision ID: 0003
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("owner", sa.Text))
    op.add_column("jobs", sa.Column("asked_id", sa.Text, nullable=False, server_default=""))


def downgrade() -> None:
    op.drop_column("jobs", "asked_id")
    op.drop_column("jobs", "owner")

"""Column for the strategies that drew a job's images.

Revision ID: 0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("tuning", sa.Text, nullable=False, server_default="{}"))


def downgrade() -> None:
    op.drop_column("jobs", "tuning")

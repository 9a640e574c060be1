"""Jobs know whose they are, and the id that was asked for where they are stored under another.

Jobs from before have no owner (NULL): every key sees them, as it did then, until they expire.

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

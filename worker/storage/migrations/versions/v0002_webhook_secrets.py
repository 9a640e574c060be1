"""Columns for the source of a webhook's secret, and for the time of its last try.

Revision ID: 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("webhooks", sa.Column("secret_source", sa.Text, nullable=False, server_default="request"))
    op.add_column("webhooks", sa.Column("tried_ms", sa.BigInteger().with_variant(sa.Integer, "sqlite")))
    op.execute("UPDATE webhooks SET secret_source = 'none' WHERE secret IS NULL AND state = 'pending'")
    op.execute("UPDATE webhooks SET tried_ms = next_at_ms WHERE attempts > 0")
    op.create_index("webhooks_created", "webhooks", ["created_ms", "id"])


def downgrade() -> None:
    op.drop_index("webhooks_created", "webhooks")
    op.drop_column("webhooks", "tried_ms")
    op.drop_column("webhooks", "secret_source")

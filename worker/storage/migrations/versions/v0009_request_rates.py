"""PostgreSQL: the last requests of each caller, which gateways count together.

Unlogged: it costs no write-ahead log, and a server that crashes forgets the requests of the last seconds.

Revision ID: 0009
"""

from __future__ import annotations

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            "CREATE UNLOGGED TABLE request_rates (caller text PRIMARY KEY, times_us bigint[] NOT NULL) "
            "WITH (fillfactor = 50)"  # each request is an update, which then stays in its page
        )


def downgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.drop_table("request_rates")

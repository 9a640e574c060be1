"""PostgreSQL: tokens by which workers ask gateways for jobs, as digests, in the schemas of gateways.

Revision ID: 0012
"""

from __future__ import annotations

from alembic import op

from darkroom.worker.storage.migrations.versions.v0011_counts_of_gateways import is_of_gateways

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    connection = op.get_bind()
    if connection.dialect.name == "postgresql" and is_of_gateways(connection):
        op.execute(
            "CREATE TABLE worker_tokens (name text PRIMARY KEY, digest text NOT NULL UNIQUE, made_ms bigint NOT NULL, "
            "seen_ms bigint, revoked_ms bigint)"
        )


def downgrade() -> None:
    connection = op.get_bind()
    if connection.dialect.name == "postgresql" and is_of_gateways(connection):
        op.drop_table("worker_tokens")

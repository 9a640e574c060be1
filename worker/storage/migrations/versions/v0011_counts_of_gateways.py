"""PostgreSQL: the counter of live jobs leaves the schemas of workers: gateways alone read it.

Revision ID: 0011
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from darkroom.worker.storage.migrations.versions import v0010_live_counts

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

GATEWAYS = "_gateway"


def is_of_gateways(connection: sa.Connection) -> bool:
    """Return True for a schema that gateways share, by its name."""
    return str(connection.execute(sa.text("SELECT current_schema()")).scalar()).endswith(GATEWAYS)


def upgrade() -> None:
    connection = op.get_bind()
    if connection.dialect.name == "postgresql" and not is_of_gateways(connection):
        v0010_live_counts.downgrade()


def downgrade() -> None:
    connection = op.get_bind()
    if connection.dialect.name == "postgresql" and not is_of_gateways(connection):
        v0010_live_counts.upgrade()

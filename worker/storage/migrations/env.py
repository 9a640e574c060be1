"""Entry point of Alembic: run the migrations on the connection that `worker/storage/database.py` passes."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"], transaction_per_migration=True)
with context.begin_transaction():
    context.run_migrations()

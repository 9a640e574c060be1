"""Alembic's migrations of the job database, run by `worker/storage/database.py` when a front starts."""

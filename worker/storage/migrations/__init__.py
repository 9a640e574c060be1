"""Alembic's migrations of the job database, run by `worker/storage/store.py` when a front starts."""

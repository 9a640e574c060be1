"""Alembic's migrations of the job database, run by `worker/jobs/store.py` when a front starts."""

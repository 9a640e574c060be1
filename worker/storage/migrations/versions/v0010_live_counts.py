"""PostgreSQL: a counter of the jobs that have not ended, and indexes for what is asked of them alone.

A count of rows costs more with each job that waits, and every request asks for it. Each session adds to the row of its
slot, so that sessions hardly ever wait for each other.

Revision ID: 0010
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

SLOTS = 64
LIVE = "finished_ms IS NULL"
ADD = (
    "CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$ "
    "DECLARE change bigint := {change}; BEGIN IF change <> 0 THEN "
    f"INSERT INTO live_counts AS held (slot, num) VALUES (pg_backend_pid() % {SLOTS}, change) "
    "ON CONFLICT (slot) DO UPDATE SET num = held.num + excluded.num; END IF; RETURN NULL; END $$"
)
NUM_BEFORE = f"(SELECT count(*) FROM before WHERE {LIVE})"
NUM_AFTER = f"(SELECT count(*) FROM after WHERE {LIVE})"
TRIGGERS = (
    ("insert", "NEW TABLE AS after", NUM_AFTER),
    ("update", "OLD TABLE AS before NEW TABLE AS after", f"{NUM_AFTER} - {NUM_BEFORE}"),
    ("delete", "OLD TABLE AS before", f"-{NUM_BEFORE}"),
)


def upgrade() -> None:
    if op.get_bind().dialect.name != "postgresql":
        return
    op.execute("CREATE TABLE live_counts (slot int PRIMARY KEY, num bigint NOT NULL)")
    for event, rows, change in TRIGGERS:
        name = f"jobs_counted_after_{event}"
        op.execute(ADD.format(name=name, change=change))
        op.execute(
            f"CREATE TRIGGER {name} AFTER {event} ON jobs REFERENCING {rows} "
            f"FOR EACH STATEMENT EXECUTE FUNCTION {name}()"
        )
    op.execute(  # the triggers' lock holds off whoever would change the number now
        f"INSERT INTO live_counts SELECT 0, count(*) FROM job_index WHERE {LIVE}"
    )
    op.create_index("job_index_live_owner", "job_index", ["owner"], postgresql_where=sa.text(LIVE))
    is_unsent = sa.text(f"{LIVE} AND stage = 'queued'")
    op.create_index("job_index_unsent", "job_index", ["number"], postgresql_where=is_unsent)


def downgrade() -> None:
    if op.get_bind().dialect.name != "postgresql":
        return
    for event, _rows, _change in TRIGGERS:
        op.execute(f"DROP TRIGGER jobs_counted_after_{event} ON jobs")
        op.execute(f"DROP FUNCTION jobs_counted_after_{event}()")
    op.drop_table("live_counts")
    op.drop_index("job_index_live_owner", "job_index")
    op.drop_index("job_index_unsent", "job_index")

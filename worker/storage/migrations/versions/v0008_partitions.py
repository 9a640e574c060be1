"""PostgreSQL: jobs in one partition a day of their arrival, and a narrow index of all of them.

`job_index` makes the id of a job unique over all partitions, and answers what needs no body of a job. Triggers keep it
equal to `jobs`. Jobs from before stay where they are, as the partition `jobs_earlier`. SQLite keeps its tables.

Revision ID: 0008
"""

from __future__ import annotations

import time

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

DAY_MS = 86_400_000
LIVE = sa.text("finished_ms IS NULL")
COLUMNS = "id, number, queued_ms, owner, state, stage, finished_ms"
FUNCTION = (
    "CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT "
    "AS $$ BEGIN {body}; RETURN NULL; END $$"
)
INSERTED = f"INSERT INTO job_index ({COLUMNS}) SELECT {COLUMNS} FROM changed"
UPDATED = (
    "UPDATE job_index SET state = changed.state, stage = changed.stage, finished_ms = changed.finished_ms FROM changed "
    "WHERE job_index.id = changed.id AND (job_index.state, job_index.stage, job_index.finished_ms) "
    "IS DISTINCT FROM (changed.state, changed.stage, changed.finished_ms)"
)
DELETED = "DELETE FROM job_index USING changed WHERE job_index.id = changed.id"
TRIGGERS = (("INSERT", "NEW", INSERTED), ("UPDATE", "NEW", UPDATED), ("DELETE", "OLD", DELETED))


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        _make_index()
        _partition()
        _add_triggers()


def _make_index() -> None:
    op.create_table(
        "job_index",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("number", sa.BigInteger, nullable=False, unique=True),
        sa.Column("queued_ms", sa.BigInteger, nullable=False),
        sa.Column("owner", sa.Text),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("stage", sa.Text, nullable=False),
        sa.Column("finished_ms", sa.BigInteger),
    )
    op.execute(f"INSERT INTO job_index ({COLUMNS}) SELECT {COLUMNS} FROM jobs")
    op.create_index("job_index_by_state", "job_index", ["state", "queued_ms", "number"])
    op.create_index("job_index_by_owner", "job_index", ["owner", "state", "queued_ms", "number"])
    op.create_index("job_index_queued", "job_index", ["queued_ms"])
    op.create_index("job_index_finished", "job_index", ["finished_ms"])
    op.create_index("job_index_unfinished", "job_index", ["number"], postgresql_where=LIVE)


def _partition() -> None:
    for name in ("jobs_by_owner", "jobs_by_state", "jobs_finished", "jobs_unfinished"):
        op.drop_index(name, "jobs")
    op.execute("ALTER TABLE jobs DROP CONSTRAINT jobs_pkey, DROP CONSTRAINT jobs_number_key")
    op.execute("ALTER TABLE jobs RENAME TO jobs_earlier")
    op.execute("CREATE TABLE jobs (LIKE jobs_earlier INCLUDING DEFAULTS) PARTITION BY RANGE (queued_ms)")
    op.execute("ALTER TABLE jobs ADD PRIMARY KEY (id, queued_ms)")
    op.create_index("jobs_number", "jobs", ["number"])
    op.create_index("jobs_finished", "jobs", ["finished_ms"])
    op.create_index("jobs_unfinished", "jobs", ["number"], postgresql_where=LIVE)
    op.execute("CREATE TABLE jobs_default PARTITION OF jobs DEFAULT")
    soon = int(time.time() * 1000) + DAY_MS  # a clock that ran ahead must not make this the partition of years
    last = (
        op.get_bind()
        .execute(sa.text("SELECT max(queued_ms) FROM jobs_earlier WHERE queued_ms < :soon"), {"soon": soon})
        .scalar()
    )
    end = 0 if last is None else (last // DAY_MS + 1) * DAY_MS
    late = f"DELETE FROM jobs_earlier WHERE queued_ms >= {end} RETURNING *"
    op.execute(f"WITH late AS ({late}) INSERT INTO jobs_default SELECT * FROM late")
    if last is None:
        op.drop_table("jobs_earlier")
    else:
        op.execute(f"ALTER TABLE jobs ATTACH PARTITION jobs_earlier FOR VALUES FROM (MINVALUE) TO ({end})")


def _add_triggers() -> None:
    for event, rows, body in TRIGGERS:
        name = f"jobs_after_{event.lower()}"
        op.execute(FUNCTION.format(name=name, body=body))
        op.execute(
            f"CREATE TRIGGER {name} AFTER {event} ON jobs REFERENCING {rows} TABLE AS changed "
            f"FOR EACH STATEMENT EXECUTE FUNCTION {name}()"
        )


def downgrade() -> None:
    if op.get_bind().dialect.name != "postgresql":
        return
    op.execute("CREATE TABLE jobs_whole (LIKE jobs INCLUDING DEFAULTS)")
    op.execute("INSERT INTO jobs_whole SELECT * FROM jobs")
    op.drop_table("jobs")
    for event, _rows, _body in TRIGGERS:
        op.execute(f"DROP FUNCTION jobs_after_{event.lower()}()")
    op.drop_table("job_index")
    op.execute("ALTER TABLE jobs_whole RENAME TO jobs")
    op.execute("ALTER TABLE jobs ADD PRIMARY KEY (id), ADD CONSTRAINT jobs_number_key UNIQUE (number)")
    op.create_index("jobs_unfinished", "jobs", ["number"], postgresql_where=LIVE)
    op.create_index("jobs_finished", "jobs", ["finished_ms"])
    op.create_index("jobs_by_state", "jobs", ["state", "queued_ms", "number"])
    op.create_index("jobs_by_owner", "jobs", ["owner", "state", "queued_ms", "number"])

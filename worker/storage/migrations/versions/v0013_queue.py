"""The queue of gateways in their own database: jobs that wait or that workers hold, and what workers announce.

`turn` puts the jobs of a priority in order so that keys take turns (start-time fair queueing, Goyal et al. 1996): a
job's is the one that was served last (`queue_served`), or the one after the last of its own key (`queue_turns`),
whichever is later. New jobs of a key wait for each other until they are stored, those without a key do not. A job that
leaves the queue while it waits returns the turns that no other job of its key has, but for those that were served.

Functions do what takes several looks, on the server, with the indexes whatever the planner believes of a table that was
empty a moment ago. `queue_take` reads bodies itself: the statement that calls it has an older view, which may lack a
job that it finds. `queue_depths` has the number of jobs by priority and model in parts, one for a session, so that
sessions hardly ever wait for each other; so has `queue_served`.

`claim` counts what happened to a lease and only grows, so that each receipt is of one delivery; `num_deliveries` counts
the deliveries after which nobody gave the job back.

`settled_ms` is the time at which a job was cancelled that no worker had: it waits on for one that sends its webhook.

PostgreSQL has the tables in the schemas of gateways; in SQLite they stay empty in the files of workers.

Revision ID: 0013
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from darkroom.worker.storage.migrations.versions.v0011_counts_of_gateways import is_of_gateways

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

SLOTS = 64
INDEXES = "SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off"
MADE = f"LANGUAGE plpgsql SET search_path FROM CURRENT {INDEXES} AS $$"
NOW = "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)"
SERVED = "coalesce((SELECT max(turn) FROM queue_served WHERE rank = new_rank), 0)"

PUT = f"""
CREATE FUNCTION queue_put(
  new_id text, new_rank int, new_owner text, new_model text, new_asked text, new_body bytea, new_number bigint,
  new_stored_ms bigint, new_bytes bigint, channel text, wake text
) RETURNS boolean {MADE}
DECLARE
  new_turn bigint;
BEGIN
  IF EXISTS (SELECT 1 FROM queue WHERE job_id = new_id) THEN RETURN false; END IF;
  IF new_owner = '' THEN
    SELECT greatest({SERVED}, held.turn + 1) INTO new_turn FROM queue_turns AS held
    WHERE held.rank = new_rank AND held.owner = '' AND NOT EXISTS (
      SELECT 1 FROM queue_turns WHERE rank = new_rank AND owner = '' FOR UPDATE SKIP LOCKED
    );
  END IF;
  IF new_turn IS NULL THEN
    INSERT INTO queue_turns AS held (rank, owner, turn) VALUES (new_rank, new_owner, {SERVED})
    ON CONFLICT (rank, owner) DO UPDATE SET turn = greatest(excluded.turn, held.turn + 1) RETURNING turn INTO new_turn;
  END IF;
  INSERT INTO queue
    (job_id, rank, turn, owner, model, asked_id, body, number, stored_ms, num_bytes, queued_ms)
  VALUES (
    new_id, new_rank, new_turn, new_owner, new_model, new_asked, new_body, new_number, new_stored_ms, new_bytes, {NOW}
  ) ON CONFLICT (job_id) DO NOTHING;
  IF NOT FOUND THEN RETURN false; END IF;
  IF wake IS NOT NULL THEN PERFORM pg_notify(channel, wake); END IF;
  RETURN true;
END $$
"""

TAKE = f"""
CREATE FUNCTION queue_take(
  new_holder text, most int, lease_ms bigint, patience_ms bigint, wanted text[], most_bytes bigint
) RETURNS SETOF queue {MADE}
DECLARE
  head queue; chosen queue; preferred text; now_ms bigint := {NOW}; left_bytes bigint := most_bytes;
BEGIN
  FOR number IN 1..most LOOP
    SELECT * INTO head FROM queue WHERE holder IS NULL ORDER BY rank, turn, position LIMIT 1 FOR UPDATE SKIP LOCKED;
    EXIT WHEN NOT FOUND;
    SELECT * INTO chosen FROM queue WHERE holder IS NULL AND rank = head.rank AND owner = head.owner
    ORDER BY rank, owner, position LIMIT 1 FOR UPDATE SKIP LOCKED;
    IF now_ms - chosen.queued_ms <= patience_ms THEN
      chosen := head;
      FOREACH preferred IN ARRAY array_append(wanted, '') LOOP
        EXIT WHEN preferred = head.model;
        SELECT * INTO chosen FROM queue
        WHERE holder IS NULL AND rank = head.rank AND owner = head.owner AND model = preferred
        ORDER BY rank, owner, model, position LIMIT 1 FOR UPDATE SKIP LOCKED;
        EXIT WHEN FOUND;
        chosen := head;
      END LOOP;
    END IF;
    EXIT WHEN number > 1 AND chosen.num_bytes > left_bytes;
    left_bytes := left_bytes - chosen.num_bytes;
    IF chosen.position <> head.position THEN
      UPDATE queue SET turn = chosen.turn WHERE position = head.position;
    END IF;
    INSERT INTO queue_served AS held (rank, slot, turn) VALUES (head.rank, pg_backend_pid() % {SLOTS}, head.turn)
    ON CONFLICT (rank, slot) DO UPDATE SET turn = excluded.turn WHERE held.turn < excluded.turn;
    UPDATE queue SET holder = new_holder, lease_until_ms = now_ms + lease_ms, num_deliveries = num_deliveries + 1,
      claim = claim + 1, turn = head.turn
    WHERE position = chosen.position RETURNING * INTO chosen;
    IF chosen.body IS NULL THEN
      chosen.body := convert_to(
        (SELECT prompt FROM jobs WHERE jobs.number = chosen.number AND jobs.queued_ms = chosen.stored_ms), 'UTF8'
      );
    END IF;
    RETURN NEXT chosen;
  END LOOP;
END $$
"""

RETURN_TURN = f"""
CREATE FUNCTION queue_return_turn(old_id text) RETURNS void {MADE}
DECLARE
  new_rank int; old_owner text;
BEGIN
  SELECT rank, owner INTO new_rank, old_owner FROM queue WHERE job_id = old_id AND holder IS NULL;
  PERFORM 1 FROM queue_turns WHERE rank = new_rank AND owner = old_owner FOR UPDATE;
  UPDATE queue_turns AS held SET turn = greatest(least(held.turn, {SERVED}), (
    SELECT waiting.turn FROM queue AS waiting
    WHERE holder IS NULL AND waiting.rank = new_rank AND waiting.owner = old_owner AND job_id <> old_id
    ORDER BY waiting.rank DESC, waiting.owner DESC, waiting.turn DESC LIMIT 1
  )) WHERE held.rank = new_rank AND held.owner = old_owner;
END $$
"""

WAITING = f"""
CREATE FUNCTION queue_waiting(most int) RETURNS bigint STABLE {MADE}
BEGIN
  RETURN (SELECT count(*) FROM (
    SELECT 1 FROM queue WHERE holder IS NULL ORDER BY rank, turn, position LIMIT most
  ) AS waiting);
END $$
"""

FREE = f"""
CREATE FUNCTION queue_free(most int) RETURNS SETOF queue {MADE}
DECLARE
  freed queue;
BEGIN
  FOR freed IN
    SELECT * FROM queue WHERE holder IS NOT NULL AND lease_until_ms < {NOW}
    ORDER BY lease_until_ms LIMIT most FOR UPDATE SKIP LOCKED
  LOOP
    UPDATE queue SET holder = NULL, lease_until_ms = NULL WHERE position = freed.position;
    RETURN NEXT freed;
  END LOOP;
END $$
"""

COUNT = f"""
CREATE FUNCTION queue_counted() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
  job queue := CASE WHEN TG_OP = 'INSERT' THEN NEW ELSE OLD END;
  change bigint := CASE WHEN TG_OP = 'INSERT' THEN 1 ELSE -1 END;
BEGIN
  INSERT INTO queue_depths AS held (slot, rank, model, num)
  VALUES (pg_backend_pid() % {SLOTS}, job.rank, job.model, change)
  ON CONFLICT (slot, rank, model) DO UPDATE SET num = held.num + excluded.num;
  RETURN NULL;
END $$
"""

COUNT_IN_SQLITE = """
CREATE TRIGGER queue_counted_after_{event} AFTER {event} ON queue BEGIN
  INSERT INTO queue_depths (slot, rank, model, num) VALUES (0, {row}.rank, {row}.model, {change})
  ON CONFLICT (slot, rank, model) DO UPDATE SET num = num + excluded.num;
END
"""


def upgrade() -> None:
    connection = op.get_bind()
    is_postgres = connection.dialect.name == "postgresql"
    if is_postgres and not is_of_gateways(connection):
        return
    _make_queue()
    _make_rest(is_postgres=is_postgres)
    if is_postgres:
        for statement in (PUT, TAKE, RETURN_TURN, WAITING, FREE, COUNT):
            op.execute(statement)
        op.execute(
            "CREATE TRIGGER queue_counted AFTER INSERT OR DELETE ON queue FOR EACH ROW EXECUTE FUNCTION queue_counted()"
        )
        op.execute("ALTER TABLE queue SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500)")
    else:
        for event, row, change in (("insert", "NEW", 1), ("delete", "OLD", -1)):
            op.execute(COUNT_IN_SQLITE.format(event=event, row=row, change=change))


def _make_queue() -> None:
    big = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    op.create_table(
        "queue",
        sa.Column("position", big, primary_key=True, autoincrement=True),
        sa.Column("job_id", sa.Text, nullable=False, unique=True),
        sa.Column("rank", sa.Integer, nullable=False),
        sa.Column("turn", sa.BigInteger, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("owner", "model", "asked_id")),
        sa.Column("body", sa.LargeBinary),
        sa.Column("num_bytes", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("number", sa.BigInteger),
        sa.Column("stored_ms", sa.BigInteger),
        sa.Column("queued_ms", sa.BigInteger, nullable=False),
        sa.Column("num_deliveries", sa.Integer, nullable=False, server_default="0"),
        sa.Column("claim", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("holder", sa.Text),
        sa.Column("lease_until_ms", sa.BigInteger),
        sa.Column("is_cancelled", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("settled_ms", sa.BigInteger),
        sqlite_autoincrement=True,
    )
    for name, columns, condition in (
        ("queue_next", ["rank", "turn", "position"], "holder IS NULL"),
        ("queue_of_owner", ["rank", "owner", "turn"], "holder IS NULL"),
        ("queue_oldest", ["rank", "owner", "position"], "holder IS NULL"),
        ("queue_of_model", ["rank", "owner", "model", "position"], "holder IS NULL"),
        ("queue_cancelled", ["rank", "owner"], "holder IS NULL AND is_cancelled"),
        ("queue_settled", ["settled_ms"], "settled_ms IS NOT NULL"),
        ("queue_leases", ["lease_until_ms"], "holder IS NOT NULL"),
    ):
        op.create_index(name, "queue", columns, postgresql_where=sa.text(condition), sqlite_where=sa.text(condition))


def _make_rest(*, is_postgres: bool) -> None:
    op.create_table(
        "queue_depths",
        sa.Column("slot", sa.Integer, primary_key=True),
        sa.Column("rank", sa.Integer, primary_key=True),
        sa.Column("model", sa.Text, primary_key=True),
        sa.Column("num", sa.BigInteger, nullable=False),
    )
    for name, key in (("queue_turns", sa.Column("owner", sa.Text)), ("queue_served", sa.Column("slot", sa.Integer))):
        op.create_table(
            name,
            sa.Column("rank", sa.Integer),
            key,
            sa.Column("turn", sa.BigInteger, nullable=False),
            sa.PrimaryKeyConstraint("rank", key.name),
        )
    op.create_table(
        "queue_results",
        sa.Column("job_id", sa.Text, primary_key=True),
        sa.Column("result", sa.LargeBinary, nullable=False),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "queue_dead",
        sa.Column("job_id", sa.Text, primary_key=True),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "queue_workers",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("entry", sa.LargeBinary, nullable=False),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "queue_nodes",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("packed", sa.LargeBinary, nullable=False),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
    )
    if not is_postgres:
        op.create_table(
            "worker_tokens",
            sa.Column("name", sa.Text, primary_key=True),
            sa.Column("digest", sa.Text, nullable=False, unique=True),
            sa.Column("made_ms", sa.BigInteger, nullable=False),
            sa.Column("seen_ms", sa.BigInteger),
            sa.Column("revoked_ms", sa.BigInteger),
        )


def downgrade() -> None:
    connection = op.get_bind()
    is_postgres = connection.dialect.name == "postgresql"
    if is_postgres and not is_of_gateways(connection):
        return
    if is_postgres:
        op.execute("DROP TRIGGER queue_counted ON queue")
        for name in ("queue_put", "queue_take", "queue_return_turn", "queue_waiting", "queue_free", "queue_counted"):
            op.execute(f"DROP FUNCTION {name}")
    for name in (
        "queue",
        "queue_depths",
        "queue_turns",
        "queue_served",
        "queue_results",
        "queue_dead",
        "queue_workers",
        "queue_nodes",
    ):
        op.drop_table(name)
    if not is_postgres:
        op.drop_table("worker_tokens")

"""Statements of the queue in PostgreSQL and in SQLite: put, take, free, and what both say alike. Blocking.

PostgreSQL has the three as functions (migration 0013), one statement each; SQLite, which is in this process, as a few
statements of one immediate transaction. Times are the database's, in milliseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import sqlalchemy as sa

from darkroom.worker.sources.stream_order import PATIENCE_SECONDS

PATIENCE_MS: Final = int(PATIENCE_SECONDS * 1000)
FREED_AT_ONCE: Final = 500
NOW_POSTGRES: Final = "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)"
NOW_SQLITE: Final = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
TAKEN: Final = ("job_id", "claim", "num_deliveries", "owner", "asked_id", "is_cancelled")
"""Columns of a job that was leased, for who takes it."""


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job for the queue. `body` is None where it is that of the row `number` of the table of jobs.

    `rank` is its priority's, 0 for the highest; `stored_ms` the time in that row, which names its partition;
    `num_bytes` the size of the body.
    """

    job_id: str
    rank: int
    owner: str
    model: str
    asked_id: str
    num_bytes: int
    body: bytes | None = None
    number: int | None = None
    stored_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Taken:
    """Jobs that were leased. `is_more`: others wait, also such as another one was about to take.

    Rows have the columns TAKEN, `waited_ms`, and `content`: the body, None where there is none.
    """

    rows: Sequence[sa.Row[Any]]
    is_more: bool

    @property
    def num_bytes(self) -> int:
        """Size of the bodies; characters of one that the database has as text."""
        return sum(len(row.content or b"") for row in self.rows)


class QueueStatements(Protocol):
    """Statements that differ between the two databases."""

    now: str
    """The time in milliseconds, as an expression."""

    def put(self, connection: sa.Connection, job: NewJob, channel: str, wake: str | None) -> bool:
        """Add a job, and notify others with `wake`. Returns False for an id that is there."""
        ...

    def take(
        self, connection: sa.Connection, holder: str, most: int, lease_ms: int, models: Sequence[str], most_bytes: int
    ) -> Taken:
        """Lease up to `most` jobs; after the first only as many as have `most_bytes` together."""
        ...

    def return_turn(self, connection: sa.Connection, job_id: str) -> None:
        """Return the turns that a key no longer needs once this job, which waits, is removed."""
        ...

    def cancel(self, connection: sa.Connection, job_id: str, channel: str, notice: str | None) -> None:
        """Note that a job is cancelled, and notify others."""
        ...

    def free(self, connection: sa.Connection) -> list[str]:
        """End leases that have run out. Returns the models of the jobs that wait again."""
        ...


class PostgresStatements:
    """Statements for PostgreSQL."""

    now = NOW_POSTGRES
    _put = sa.text(
        "SELECT queue_put(:job_id, :rank, :owner, :model, :asked_id, :body, :number, :stored_ms, :num_bytes, "
        ":channel, :wake)"
    )
    _take = sa.text(
        f"SELECT {', '.join(TAKEN)}, {NOW_POSTGRES} - taken.queued_ms AS waited_ms, taken.body AS content, num_waiting "
        "FROM queue_waiting(CAST(:most AS int) + 1) AS num_waiting LEFT JOIN queue_take("
        ":holder, :most, :lease_ms, :patience_ms, :models, :most_bytes) AS taken ON true"
    )
    _cancel = sa.text(
        "WITH cancelled AS (UPDATE queue SET is_cancelled = true WHERE job_id = :job_id) "
        "SELECT pg_notify(:channel, :notice)"
    )
    _free = sa.text("SELECT model FROM queue_free(:most)")
    _return_turn = sa.text("SELECT queue_return_turn(:job_id)")

    def put(self, connection: sa.Connection, job: NewJob, channel: str, wake: str | None) -> bool:
        return bool(connection.execute(self._put, {**_values(job), "channel": channel, "wake": wake}).scalar())

    def take(
        self, connection: sa.Connection, holder: str, most: int, lease_ms: int, models: Sequence[str], most_bytes: int
    ) -> Taken:
        values = {
            "holder": holder, "most": most, "lease_ms": lease_ms, "patience_ms": PATIENCE_MS, "models": list(models),
            "most_bytes": most_bytes,
        }  # fmt: skip
        found = connection.execute(self._take, values).all()
        rows = [row for row in found if row.job_id is not None]
        return Taken(rows, is_more=found[0].num_waiting > len(rows))

    def return_turn(self, connection: sa.Connection, job_id: str) -> None:
        connection.execute(self._return_turn, {"job_id": job_id})

    def cancel(self, connection: sa.Connection, job_id: str, channel: str, notice: str | None) -> None:
        connection.execute(self._cancel, {"job_id": job_id, "channel": channel, "notice": notice})

    def free(self, connection: sa.Connection) -> list[str]:
        return list(connection.execute(self._free, {"most": FREED_AT_ONCE}).scalars())


class SqliteStatements:
    """Statements for SQLite, in the transaction of the caller."""

    now = NOW_SQLITE
    _turn = sa.text(
        "INSERT INTO queue_turns (rank, owner, turn) "
        "VALUES (:rank, :owner, coalesce((SELECT max(turn) FROM queue_served WHERE rank = :rank), 0)) "
        "ON CONFLICT (rank, owner) DO UPDATE SET turn = max(excluded.turn, turn + 1) RETURNING turn"
    )
    _put = sa.text(
        "INSERT INTO queue (job_id, rank, turn, owner, model, asked_id, body, number, stored_ms, num_bytes, queued_ms) "
        "VALUES (:job_id, :rank, :turn, :owner, :model, :asked_id, :body, :number, :stored_ms, :num_bytes, "
        f"{NOW_SQLITE}) ON CONFLICT (job_id) DO NOTHING"
    )
    _is_there = sa.text("SELECT 1 FROM queue WHERE job_id = :job_id")
    _return_turn = sa.text(
        "UPDATE queue_turns SET turn = max("
        "min(turn, coalesce((SELECT max(turn) FROM queue_served AS served WHERE served.rank = queue_turns.rank), 0)), "
        "coalesce((SELECT waiting.turn FROM queue AS waiting WHERE holder IS NULL AND "
        "waiting.rank = queue_turns.rank AND waiting.owner = queue_turns.owner AND job_id <> :job_id "
        "ORDER BY waiting.turn DESC LIMIT 1), 0)) "
        "WHERE (rank, owner) IN (SELECT rank, owner FROM queue WHERE job_id = :job_id AND holder IS NULL)"
    )
    _columns = "position, turn, rank, owner, model, num_bytes"
    _head = sa.text(f"SELECT {_columns} FROM queue WHERE holder IS NULL ORDER BY rank, turn, position LIMIT 1")
    _oldest = sa.text(
        f"SELECT {_columns}, {NOW_SQLITE} - queued_ms AS waited_ms FROM queue WHERE holder IS NULL AND rank = :rank "
        "AND owner = :owner ORDER BY rank, owner, position LIMIT 1"
    )
    _preferred = sa.text(
        f"SELECT {_columns} FROM queue WHERE holder IS NULL AND rank = :rank AND owner = :owner AND model = :model "
        "ORDER BY rank, owner, model, position LIMIT 1"
    )
    _delay = sa.text("UPDATE queue SET turn = :turn WHERE position = :position")
    _hold = sa.text(
        f"UPDATE queue SET holder = :holder, lease_until_ms = {NOW_SQLITE} + :lease_ms, turn = :turn, "
        "num_deliveries = num_deliveries + 1, claim = claim + 1 WHERE position = :position"
    )
    _serve = sa.text(
        "INSERT INTO queue_served (rank, slot, turn) VALUES (:rank, 0, :turn) "
        "ON CONFLICT (rank, slot) DO UPDATE SET turn = max(turn, excluded.turn)"
    )
    _taken = sa.text(
        f"SELECT {', '.join(TAKEN)}, {NOW_SQLITE} - taken.queued_ms AS waited_ms, coalesce(taken.body, "
        "(SELECT prompt FROM jobs WHERE jobs.number = taken.number)) AS content FROM queue AS taken "
        "WHERE position = :position"
    )
    _cancel = sa.text("UPDATE queue SET is_cancelled = true WHERE job_id = :job_id")
    _free = sa.text(
        "UPDATE queue SET holder = NULL, lease_until_ms = NULL "
        f"WHERE holder IS NOT NULL AND lease_until_ms < {NOW_SQLITE} RETURNING model"
    )

    def put(self, connection: sa.Connection, job: NewJob, channel: str, wake: str | None) -> bool:
        if connection.execute(self._is_there, {"job_id": job.job_id}).first() is not None:
            return False
        turn = connection.execute(self._turn, {"rank": job.rank, "owner": job.owner}).scalar()
        return connection.execute(self._put, {**_values(job), "turn": turn}).rowcount > 0

    def take(
        self, connection: sa.Connection, holder: str, most: int, lease_ms: int, models: Sequence[str], most_bytes: int
    ) -> Taken:
        found: list[sa.Row[Any]] = []
        while len(found) < most:
            head = connection.execute(self._head).one_or_none()
            if head is None:
                break
            oldest = connection.execute(self._oldest, {"rank": head.rank, "owner": head.owner}).one()
            is_late = oldest.waited_ms > PATIENCE_MS
            chosen = oldest if is_late else self._preferred_to(connection, head, models)
            if found and chosen.num_bytes > most_bytes:
                break
            most_bytes -= chosen.num_bytes
            if chosen.position != head.position:
                connection.execute(self._delay, {"turn": chosen.turn, "position": head.position})
            at = {"position": chosen.position}
            connection.execute(self._serve, {"rank": head.rank, "turn": head.turn})
            connection.execute(self._hold, {"holder": holder, "lease_ms": lease_ms, "turn": head.turn, **at})
            found.append(connection.execute(self._taken, at).one())
        return Taken(found, is_more=connection.execute(self._head).first() is not None)

    def return_turn(self, connection: sa.Connection, job_id: str) -> None:
        connection.execute(self._return_turn, {"job_id": job_id})

    def cancel(self, connection: sa.Connection, job_id: str, channel: str, notice: str | None) -> None:
        connection.execute(self._cancel, {"job_id": job_id})

    def free(self, connection: sa.Connection) -> list[str]:
        return list(connection.execute(self._free).scalars())

    def _preferred_to(self, connection: sa.Connection, head: sa.Row[Any], models: Sequence[str]) -> sa.Row[Any]:
        for model in (*models, ""):
            if model == head.model:
                break
            values = {"rank": head.rank, "owner": head.owner, "model": model}
            found = connection.execute(self._preferred, values).one_or_none()
            if found is not None:
                return found
        return head


class SharedStatements:
    """Statements that both databases take; `now` is the time as an expression."""

    def __init__(self, now: str) -> None:
        is_held = "job_id = :job_id AND claim = :claim AND holder = :holder"
        self.find = _of_jobs("SELECT job_id, is_cancelled FROM queue WHERE job_id IN :job_ids")
        self.renew = _of_jobs(
            f"UPDATE queue SET lease_until_ms = {now} + :lease_ms, holder = :holder WHERE job_id IN :job_ids AND "
            "job_id || '/' || claim IN :held AND (holder = :holder OR holder IS NULL) RETURNING job_id"
        ).bindparams(sa.bindparam("held", expanding=True))
        self.give_back = sa.text(
            "UPDATE queue SET holder = NULL, lease_until_ms = NULL, num_deliveries = num_deliveries - 1, "
            f"claim = claim + 1 WHERE {is_held} RETURNING model"
        )
        self.lock = sa.text(
            f"SELECT holder FROM queue WHERE job_id = :job_id {'FOR UPDATE' if now == NOW_POSTGRES else ''}"
        )
        self.remove = sa.text("DELETE FROM queue WHERE job_id = :job_id")
        self.depths = sa.text("SELECT rank, model, sum(num) AS num FROM queue_depths GROUP BY rank, model")
        self.depth = sa.text("SELECT coalesce(sum(num), 0) FROM queue_depths")
        waits = "FROM queue WHERE holder IS NULL AND rank = :rank"
        gone = "(SELECT count(*) FROM queue WHERE holder IS NULL AND is_cancelled AND rank {those}) AS {name}"
        self.before = sa.text(
            "WITH RECURSIVE owners (owner, place) AS ("
            f"SELECT (SELECT owner {waits} ORDER BY rank, owner, position LIMIT 1), 1 UNION ALL "
            f"SELECT (SELECT owner {waits} AND owner > owners.owner ORDER BY rank, owner, position LIMIT 1), place + 1 "
            "FROM owners WHERE owner IS NOT NULL AND place < :most_owners) "
            "SELECT (SELECT coalesce(sum(num), 0) FROM queue_depths WHERE rank < :rank) AS all_higher, "
            f"{gone.format(those='< :rank', name='higher_gone')}, {gone.format(those='= :rank', name='same_gone')}, "
            "(SELECT coalesce(sum(num), 0) FROM queue_depths WHERE rank = :rank) AS all_same, "
            f"(SELECT count(*) FROM (SELECT 1 {waits} AND owner = :owner AND NOT is_cancelled LIMIT :most_own) AS own) "
            "AS num_own, "
            "(SELECT count(owner) FROM owners WHERE owner <> :owner) AS num_others"
        )
        self.add_result = sa.text(
            f"INSERT INTO queue_results (job_id, result, at_ms) VALUES (:job_id, :result, {now}) ON CONFLICT DO NOTHING"
        )
        self.result = sa.text("SELECT result FROM queue_results WHERE job_id = :job_id")
        self.sizes = _of_jobs(
            "SELECT job_id, length(result) AS num_bytes FROM queue_results WHERE job_id IN :job_ids"
        )  # fmt: skip
        self.add_dead = sa.text(
            f"INSERT INTO queue_dead (job_id, reason, body, at_ms) VALUES (:job_id, :reason, :body, {now}) "
            "ON CONFLICT DO NOTHING"
        )
        self.announce = sa.text(
            f"INSERT INTO queue_workers (name, entry, at_ms) VALUES (:name, :entry, {now}) "
            "ON CONFLICT (name) DO UPDATE SET entry = excluded.entry, at_ms = excluded.at_ms"
        )
        self.add_nodes = sa.text(
            f"INSERT INTO queue_nodes (id, packed, at_ms) VALUES (:id, :packed, {now}) "
            "ON CONFLICT (id) DO UPDATE SET at_ms = excluded.at_ms"
        )
        self.fleet = sa.text(
            f"SELECT entry, {now} - at_ms <= :fresh_ms AS is_there FROM queue_workers "
            f"WHERE at_ms >= {now} - :fresh_ms OR at_ms = (SELECT max(at_ms) FROM queue_workers)"
        )
        self.nodes = sa.text("SELECT packed FROM queue_nodes WHERE id = :id")
        self.forget_settled = sa.text(f"DELETE FROM queue WHERE settled_ms < {now} - :kept_ms AND holder IS NULL")
        self.forget_turns = sa.text(
            "DELETE FROM queue_turns WHERE turn < (SELECT max(turn) FROM queue_served AS served "
            "WHERE served.rank = queue_turns.rank)"
        )
        self.forget = tuple(
            sa.text(f"DELETE FROM {table} WHERE at_ms < {now} - :kept_ms {but}")
            for table, but in (
                ("queue_results", ""),
                ("queue_dead", ""),
                ("queue_workers", "AND at_ms < (SELECT max(at_ms) FROM queue_workers)"),
                ("queue_nodes", "AND at_ms < (SELECT max(at_ms) FROM queue_nodes)"),
            )
        )
        self.settle = sa.text(
            f"UPDATE queue SET settled_ms = {now}, body = coalesce(:body, body) WHERE job_id = :job_id"
        )


def _of_jobs(statement: str) -> sa.TextClause:
    return sa.text(statement).bindparams(sa.bindparam("job_ids", expanding=True))


def _values(job: NewJob) -> dict[str, object]:
    return {name: getattr(job, name) for name in job.__slots__}

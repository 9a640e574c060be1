"""Notices of PostgreSQL (LISTEN) on a connection of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator

from darkroom.worker.settings.database import DatabaseConfig
from darkroom.worker.storage.postgres_database import connect_arguments


class ListeningFailed(Exception):
    """The connection that listens cannot be made, or was lost."""


async def notices_of(config: DatabaseConfig, channel: str) -> AsyncIterator[str | None]:
    """Yield None once the connection listens, then the payload of each notice. Raises ListeningFailed."""
    import psycopg  # an extra
    from psycopg import sql
    from psycopg.conninfo import make_conninfo

    address = make_conninfo(config.url.get_secret_value(), **connect_arguments(config))
    try:
        async with await psycopg.AsyncConnection.connect(address, autocommit=True) as listening:
            await listening.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
            yield None
            async for notice in listening.notifies():
                yield notice.payload
    except (psycopg.Error, OSError) as error:
        raise ListeningFailed(str(error).strip().partition("\n")[0]) from None
    raise ListeningFailed("the server has ended the connection")

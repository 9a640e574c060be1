"""Migration of a job database: python -m darkroom.worker.storage.migrations DATABASE [REVISION].

DATABASE is an SQLite file; `-` reads SQLAlchemy's URL from standard input, since it may contain a password.

Without a revision the tables become the newest ones; with an earlier one what they have no place for is dropped.
"""

from __future__ import annotations

import sys
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory


def migrate(database: Path | str, revision: str = "head") -> None:
    """Bring the tables of a file or a URL to a revision, newer or older. Raises CommandError for an unknown one."""
    url = f"sqlite:///{database}" if isinstance(database, Path) else database
    with sa.create_engine(url, poolclass=sa.NullPool).connect() as connection:
        config = Config()
        config.set_main_option("script_location", str(Path(__file__).parent))
        config.attributes["connection"] = connection
        known = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions("base", "heads")]
        now = MigrationContext.configure(connection).get_current_revision()
        connection.rollback()
        is_older = revision in known and now in known and known.index(revision) > known.index(now)
        (command.downgrade if is_older else command.upgrade)(config, revision)
        connection.commit()


if __name__ == "__main__":
    place = sys.argv[1]
    migrate(sys.stdin.read().strip() if place == "-" else Path(place), *sys.argv[2:])

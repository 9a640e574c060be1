"""Tables of a new SQLite database as one script, `tables.sql`: running every migration takes about a second.

    python -m darkroom.worker.storage.migrations.tables

This writes the script anew after a migration was added. A database that begins with an older script gets the
migrations after it, like any other.
"""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
from pathlib import Path

SCRIPT = Path(__file__).parent / "tables.sql"


def script_of(database: Path) -> str:
    """Return the statements that make the tables and indexes of an SQLite file, and its revision."""
    with contextlib.closing(sqlite3.connect(database)) as connection:
        made = connection.execute(
            "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' "
            "ORDER BY type = 'trigger', type DESC, name"
        )
        statements = [sql for (sql,) in made]
        (revision,) = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    statements.append(f"INSERT INTO alembic_version (version_num) VALUES ('{revision}')")
    return "".join(f"{tidied(statement)};\n" for statement in statements)


def tidied(statement: str) -> str:
    return "\n".join(line.rstrip() for line in statement.replace("\t", "    ").splitlines())


def create_tables(connection: sqlite3.Connection) -> None:
    """Make the tables of an empty database in one transaction."""
    connection.executescript(f"BEGIN;\n{SCRIPT.read_text(encoding='utf-8')}COMMIT;\n")


def main() -> None:
    """Write the script from a database that is made by all migrations."""
    from darkroom.worker.storage.migrations.__main__ import migrate

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "darkroom.db"
        migrate(path)
        SCRIPT.write_text(script_of(path), encoding="utf-8")


if __name__ == "__main__":
    main()

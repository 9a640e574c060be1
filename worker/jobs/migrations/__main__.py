"""Migration of a job database to the newest tables: python -m worker.jobs.migrations DATABASE."""

from __future__ import annotations

import sys
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config


def migrate(path: Path) -> None:
    with sa.create_engine(f"sqlite:///{path}").connect() as connection:
        config = Config()
        config.set_main_option("script_location", str(Path(__file__).parent))
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        connection.commit()


if __name__ == "__main__":
    migrate(Path(sys.argv[1]))

"""Settings of the job database."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr

from darkroom.worker.settings.section import Section, env

SCHEMES = ("postgresql", "postgres")


def _check_database(value: SecretStr) -> SecretStr:
    url = value.get_secret_value()
    if url and urlsplit(url).scheme not in SCHEMES:
        raise ValueError("expected postgresql://USER@HOST/DATABASE, or nothing for a file of STATE_DIRECTORY")
    return value


class DatabaseConfig(Section):
    """Connection to PostgreSQL. Without `url` jobs are in an SQLite file of the state directory."""

    url: Annotated[Annotated[SecretStr, AfterValidator(_check_database)], env("DATABASE_URL")] = SecretStr("")
    """PostgreSQL for jobs, results and webhooks: `postgresql://USER@HOST/DATABASE`
    ([database](fleet.md#jobs-in-postgresql)). Empty: an SQLite file in `STATE_DIRECTORY`, also of a gateway."""

    schema_name: Annotated[Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_]{0,62}$")], env("DATABASE_SCHEMA")] = (
        "darkroom"
    )
    """Its schema, one for each worker."""

    @property
    def is_set(self) -> bool:
        return bool(self.url.get_secret_value())

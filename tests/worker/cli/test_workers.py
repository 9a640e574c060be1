"""`darkroom workers` at a real gateway."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from typer.testing import CliRunner

from darkroom.worker.cli.main import app
from tests.worker.gateway.running_gateway import LocalGateway
from tests.worker.postgres_server import PostgresServer
from tests.worker.sources.servers import redis_server


async def test_tokens_are_made_listed_and_revoked_by_commands(tmp_path: Path, postgres: PostgresServer) -> None:
    async with redis_server(tmp_path / "redis") as broker:
        gateway = LocalGateway(broker.url, postgres.url(postgres.new_database()))
        await gateway.start()

        async def run(*words: str) -> tuple[int, str]:
            """Return the exit code and the output of a command."""
            given = ["workers", *words, "--url", gateway.url]
            done = await asyncio.to_thread(CliRunner().invoke, app, given)
            return done.exit_code, done.output

        code, made = await run("new", "pod")
        assert code == 0 and made.startswith("WORKER_TOKEN=worker-")
        assert (await run("new", "pod"))[0] == 1, "its name is in use"
        (listed,) = (await run("ls", "--json"))[1].splitlines()
        assert json.loads(listed)["name"] == "pod" and "seen never" in (await run("ls"))[1]
        assert (await run("revoke", "pod"))[0] == 0
        assert "revoked 2" in (await run("ls"))[1]
        assert (await run("revoke", "pod"))[0] == 1, "it was revoked before"
        await gateway.stop()
        assert (await run("ls"))[0] == 2

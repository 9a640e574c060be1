"""`darkroom workers` at a real gateway."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from click.testing import Result
from typer.testing import CliRunner

from darkroom.worker.cli.main import app
from tests.worker.gateway.running_gateway import LocalGateway
from tests.worker.postgres_server import PostgresServer
from tests.worker.sources.servers import redis_server


async def test_tokens_are_made_listed_and_revoked_by_commands(tmp_path: Path, postgres: PostgresServer) -> None:
    async with redis_server(tmp_path / "redis") as broker:
        gateway = LocalGateway(broker.url, postgres.url(postgres.new_database()))
        await gateway.start()

        async def run(*words: str) -> Result:
            return await asyncio.to_thread(CliRunner().invoke, app, ["workers", *words, "--url", gateway.url])

        made = await run("new", "pod")
        assert made.exit_code == 0 and made.output.startswith("WORKER_TOKEN=worker-")
        assert (await run("new", "pod")).exit_code == 1
        (listed,) = (await run("ls", "--json")).output.splitlines()
        assert json.loads(listed)["name"] == "pod" and "seen never" in (await run("ls")).output
        assert (await run("revoke", "pod")).exit_code == 0
        assert "revoked 2" in (await run("ls")).output
        assert (await run("revoke", "pod")).exit_code == 1
        await gateway.stop()
        assert (await run("ls")).exit_code == 2

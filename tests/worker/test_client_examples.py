"""The programs of the page on clients run against a worker with keys.

They run as they stand but for the modifier's name: the stand-in of an engine has a single node, which `Sketch` uses.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes import FakeEngine, draw
from tests.markdown import code_blocks
from tests.worker.running_front import RunningFront, running_front

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8").replace("Text2Image", "Sketch")
KEY = "a-secret-for-clients"
SKETCH = """
description = "One drawing"
workflow = "sketch.json"

[parameters.prompt]
into = "1.text"
type = "text"

[parameters.seed]
into = "1.size"
type = "integer"
default = 8
"""


@contextlib.asynccontextmanager
async def front_with_keys(folder: Path, engine: FakeEngine) -> AsyncIterator[RunningFront]:
    modifiers = folder / "modifiers"
    modifiers.mkdir()
    (modifiers / "Sketch.toml").write_text(SKETCH)
    (modifiers / "sketch.json").write_text(json.dumps(draw()))
    async with running_front(
        folder / "base", engine, api_keys=f"shop:{KEY}", base_directory=str(modifiers.parent)
    ) as front:
        yield front


async def run_program(front: RunningFront, folder: Path, *command: str, key: str = KEY) -> tuple[int, str]:
    """Exit code and output of a program in a folder."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "DARKROOM_URL": front.url,
        "DARKROOM_KEY": key,
        "NO_PROXY": "*",
    }
    program = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await program.communicate()
    assert program.returncode is not None
    return program.returncode, said.decode()


async def test_the_python_programs_draw_and_report_refusals(tmp_path: Path, engine: FakeEngine) -> None:
    library, one, several = code_blocks(PAGE, "python")
    async with front_with_keys(tmp_path, engine) as front:
        code, said = await run_program(front, tmp_path, sys.executable, "-c", one)
        assert code == 0, said
        assert (tmp_path / said.split()[-1]).stat().st_size > 0
        code, said = await run_program(front, tmp_path, sys.executable, "-c", several)
        assert code == 0 and said.count("completed") == 3, said
        code, said = await run_program(front, tmp_path, sys.executable, "-c", library)
        assert code == 0 and said.startswith("queued"), said
        assert (tmp_path / said.split()[-1]).stat().st_size > 0
        for program in (one, library):
            code, said = await run_program(front, tmp_path, sys.executable, "-c", program, key="wrong")
            assert code != 0 and said.startswith("401: ")


async def test_the_javascript_program_shows_progress_and_the_result(tmp_path: Path, engine: FakeEngine) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    (tmp_path / "client.mjs").write_text(code_blocks(PAGE, "javascript")[0])
    async with front_with_keys(tmp_path, engine) as front:
        code, said = await run_program(front, tmp_path, node, "client.mjs")
    assert code == 0 and "/outputs/" in said, said

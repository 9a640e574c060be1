"""A small ComfyUI with its flags and API, to be started as the fallback: `main.py` of a folder that `install` makes.

It has the nodes of `tests/fakes.py`, and writes its process id into `pid` of its folder at each start. A file `broken`
there ends it at its start.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
from pathlib import Path

MAIN = """
import sys
sys.path[:0] = {path!r}
from tests.worker.engines.fallback.stand_in import main
main()
"""


def install(folder: Path) -> Path:
    """Make a folder with `main.py` and a Python of its own, as ComfyUI's is; return it."""
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / ".venv" / "bin" / "python").symlink_to(sys.executable)
    (folder / "main.py").write_text(MAIN.format(path=[path for path in sys.path if path]))
    return folder


def main() -> None:
    folder = Path(sys.argv[0]).parent
    if (folder / "broken").exists():
        sys.exit("No module named 'torch'")
    parser = argparse.ArgumentParser()
    for flag in ("listen", "extra-model-paths-config", "input-directory", "output-directory", "temp-directory"):
        parser.add_argument(f"--{flag}", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--user-directory")
    for flag in ("disable-auto-launch", "disable-metadata", "cpu", "lowvram"):
        parser.add_argument(f"--{flag}", action="store_true")
    given = parser.parse_args()
    with contextlib.suppress(OSError):  # in a sandbox it cannot change its own folder
        (folder / "given.json").write_text(json.dumps(vars(given)))
        (folder / "pid").write_text(str(os.getpid()))
    Path(given.output_directory).mkdir(parents=True, exist_ok=True)
    asyncio.run(_serve(Path(given.output_directory), given.listen, given.port))


async def _serve(outputs: Path, host: str, port: int) -> None:
    from tests.fakes import FakeEngine

    async with FakeEngine(outputs, host, port) as engine:
        engine.takes_uuids_alone = True
        await asyncio.Event().wait()

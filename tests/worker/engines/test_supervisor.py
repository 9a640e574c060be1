"""The engine as a real child process: started, lost, started again, never left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from darkroom.worker.engines.command import EngineCommand, engine_command, precision_flags
from darkroom.worker.engines.loss import Loss, LossReason
from darkroom.worker.engines.supervisor import EngineProcess
from darkroom.worker.errors import EngineStartFailed
from darkroom.worker.settings.engines import EngineLaunch
from tests.worker.running_front import until

CHILD = """
import http.server, os, socket, sys, threading
arguments = sys.argv[1:]
listening = int(arguments[arguments.index("--listen-fd") + 1])
pipe = int(arguments[arguments.index("--liveness-fd") + 1])
threading.Thread(target=lambda: (os.read(pipe, 1), os._exit(3)), daemon=True).start()
print("environment:", *sorted(os.environ), flush=True)

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")
    def log_message(self, *_):
        pass

server = http.server.HTTPServer(("", 0), Handler, bind_and_activate=False)
server.socket = socket.socket(fileno=listening)
server.serve_forever()
"""

PARENT = """
import asyncio, sys
from pathlib import Path
from darkroom.worker.engines.command import EngineCommand
from darkroom.worker.engines.supervisor import EngineProcess

async def main():
    process = EngineProcess(EngineCommand((sys.executable, "-c", Path(sys.argv[1]).read_text()), (), {}, Path(".")))
    await process.start()
    print(process.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def command(script: str, tmp_path: Path) -> EngineCommand:
    return EngineCommand((sys.executable, "-c", script), (), {"PLAIN": "1"}, tmp_path)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"


async def test_a_child_is_started_and_stopped(tmp_path: Path) -> None:
    process = EngineProcess(command(CHILD, tmp_path))
    await process.start()
    pid = process.pid
    assert process.is_answering and pid is not None and is_alive(pid)
    await process.stop()
    assert process.pid is None and not is_alive(pid)


async def test_a_child_that_dies_before_it_answers_fails_the_start_with_its_last_words(tmp_path: Path) -> None:
    script = "print('no such device'); raise SystemExit(7)"
    with pytest.raises(EngineStartFailed, match=r"code 7 .*no such device"):
        await EngineProcess(command(script, tmp_path)).start()


async def test_a_child_that_is_killed_is_reported_at_once_and_started_again(tmp_path: Path) -> None:
    losses: asyncio.Queue[Loss] = asyncio.Queue()
    process = EngineProcess(command(CHILD, tmp_path), on_lost=losses.put_nowait)
    await process.start()
    first = process.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    async with asyncio.timeout(60):
        assert (await losses.get()).reason is LossReason.CRASHED
        await process.wait_until_answering()
    assert process.pid != first and process.num_restarts == 1
    await process.stop()


async def test_no_child_outlives_a_front_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    parent = subprocess.Popen(  # noqa: ASYNC220 - it is killed
        [sys.executable, "-c", PARENT, str(script)], stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL
    )
    assert parent.stdout is not None
    child = next(int(line) for line in parent.stdout if line.strip().isdigit())
    assert is_alive(child)
    parent.kill()
    parent.wait()

    async def is_gone() -> bool:
        return not is_alive(child)

    await until(is_gone)


def test_the_command_says_what_the_front_was_asked(tmp_path: Path) -> None:
    launch = EngineLaunch(
        arguments=("--port", "8188", "--lowvram"), base_directory=tmp_path, metadata="none", is_cpu=True
    )
    made = engine_command(launch, {}, frozenset({"amx_bf16"}))
    assert made.port == 8188
    assert list(made.arguments) == [
        *("--base-directory", str(tmp_path), "--cpu", "--disable-metadata", "--log-format", "json"),
        *("--bf16-unet", "--lowvram"),
    ]


@pytest.mark.parametrize(
    ("precision", "flags", "given", "expected"),
    [
        ("auto", {"avx512_bf16"}, [], ["--bf16-unet"]),
        ("auto", {"avx2"}, [], []),
        ("auto", {"amx_bf16"}, ["--fp16-unet"], []),
        ("fp32", {"amx_bf16"}, [], ["--force-fp32"]),
        ("bf16", set(), [], ["--bf16-unet"]),
    ],
)
def test_bfloat16_is_asked_for_where_the_processor_has_it(
    precision: str, flags: set[str], given: list[str], expected: list[str]
) -> None:
    assert precision_flags(precision, frozenset(flags), given) == expected

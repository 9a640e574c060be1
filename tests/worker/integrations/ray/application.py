"""A Ray Serve application with two replicas on the CPU, in this test's own Ray cluster."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx

from darkroom.worker.engines.supervisor import free_port
from tests.worker.running_front import until

ROOT = Path(__file__).parents[4]
START_SECONDS = 300
PROGRAM = """
import json, sys, time
import ray
from ray import serve
from darkroom.ray_serve import build
options, port = json.loads(sys.argv[1]), int(sys.argv[2])
ray.init(num_cpus=2, num_gpus=0, include_dashboard=False, configure_logging=False)
serve.start(http_options={"host": "127.0.0.1", "port": port})
serve.run(build(options), name="darkroom", route_prefix="/")
print("running", flush=True)
sys.stdin.read()
serve.shutdown()
ray.shutdown()
"""


@contextlib.asynccontextmanager
async def ray_application(folder: Path, **options: object) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of an application whose first replica is ready. Everything ends with the block."""
    port = free_port()
    given = {"gpus": 0, "cpus": 0.2, "state_directory": str(folder / "ray-state"), **options}
    settings = {"BASE_DIRECTORY": str(folder), "BENCHMARK": "off", "PRECISION": "fp32", "MIN_FREE_DISK_BYTES": "0"}
    environment = {**os.environ, **settings, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    with (folder / "ray.log").open("wb") as log:  # noqa: ASYNC230 - the child writes to it
        program = subprocess.Popen(  # noqa: ASYNC220 - starting takes no time
            [sys.executable, "-c", PROGRAM, json.dumps(given), str(port)],
            cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=300, trust_env=False) as http:

            async def is_ready() -> bool:
                assert program.poll() is None, (folder / "ray.log").read_text()[-4000:]
                with contextlib.suppress(httpx.TransportError):
                    return (await http.get("/ready", timeout=5)).status_code == 200
                return False

            await until(is_ready, START_SECONDS)
            yield http
    finally:
        assert program.stdin is not None
        program.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            program.wait(60)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.wait()

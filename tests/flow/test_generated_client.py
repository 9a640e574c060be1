"""A client generated from the API's document, used against a real worker. Slow: the generator is fetched first."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.flow.running_worker import RunningWorker

GENERATOR = ("openapi-python-client==0.29.1", "ruamel.yaml>=0.18")
"""Without their dependencies, which the tests' own bring along."""
PACKAGE = "darkroom_client"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def generator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("generator")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), *GENERATOR]
    fetched = subprocess.run(pip, capture_output=True, text=True, timeout=100)
    if fetched.returncode != 0:
        pytest.skip(f"openapi-python-client cannot be fetched: {fetched.stderr[-200:]}")
    return folder


@pytest.fixture(scope="module")
def client(
    worker: RunningWorker, generator: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SimpleNamespace]:
    """The generated package, and a client of the worker."""
    folder = tmp_path_factory.mktemp("generated")
    (folder / "openapi.json").write_bytes(worker.get("/openapi.json").content)
    command = [sys.executable, "-m", "openapi_python_client", "generate", "--path", str(folder / "openapi.json")]
    made = subprocess.run(
        [*command, "--output-path", str(folder / PACKAGE), "--meta", "none"],
        env={"PYTHONPATH": str(generator), "PATH": str(Path(sys.executable).parent)},  # with ruff, which it runs
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert made.returncode == 0 and "warning" not in (made.stdout + made.stderr).lower(), made.stdout + made.stderr
    sys.path.insert(0, str(folder))
    try:
        package: Any = importlib.import_module(PACKAGE)

        def call(name: str) -> Any:
            return importlib.import_module(f"{PACKAGE}.api.{name}")

        models = importlib.import_module(f"{PACKAGE}.models")
        here = package.Client(base_url=worker.url, timeout=60)
        yield SimpleNamespace(here=here, call=call, models=models)
    finally:
        sys.path.remove(str(folder))
        for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
            del sys.modules[name]


def request_of(client: SimpleNamespace, **fields: Any) -> Any:
    models = client.models
    given = {"modifier": "Text2Image", "modifications": {"prompt": "an apple", "width": 64, "height": 64, "steps": 1}}
    return models.GenerateRequest(input_=models.GenerateInput.from_dict({**given, **fields}))


def test_an_image_is_drawn_and_its_result_is_typed(client: SimpleNamespace, worker: RunningWorker) -> None:
    result = client.call("generate.generate_sync").sync(client=client.here, body=request_of(client))
    assert result.status is client.models.JobState.COMPLETED
    assert result.timings.total_ms > 0 and isinstance(result.output[0], client.models.OutputFile)
    again = client.call("jobs.get_result").sync(result.id, client=client.here)
    assert again.output[0].filename == result.output[0].filename
    assert worker.http.get(again.output[0].url).content.startswith(b"\x89PNG")


def test_a_refusal_is_typed_and_names_every_problem(client: SimpleNamespace) -> None:
    wrong = request_of(client, modifications={"prompt": "an apple", "width": "wide", "steps": -1})
    reply = client.call("generate.generate_sync").sync_detailed(client=client.here, body=wrong)
    assert reply.status_code == 422 and reply.parsed.status is client.models.JobState.FAILED
    assert {problem.field for problem in reply.parsed.error.problems} == {
        "input.modifications.width",
        "input.modifications.steps",
    }


def test_a_stream_is_text_and_ends_with_the_result(client: SimpleNamespace) -> None:
    text = client.call("generate.generate_stream").sync(client=client.here, body=request_of(client))
    assert isinstance(text, str) and '"final_result"' in text


def test_the_worker_s_state_is_typed(client: SimpleNamespace) -> None:
    health = client.call("worker.get_health").sync(client=client.here)
    assert health.backends[0].state is client.models.EngineState.UP and health.disk.low is False
    assert client.call("worker.get_ready").sync(client=client.here).status == "ready"
    assert client.call("jobs.get_queue_info").sync(client=client.here).engines == 1
    assert "Text2Image" in {entry.name for entry in client.call("worker.list_modifiers").sync(client=client.here)}
    assert "darkroom_engine_up" in client.call("worker.get_metrics").sync(client=client.here)

"""The server against recorded traffic of ComfyUI: the same requests bring the same messages, in order and shape.

Set-up: one server for all recordings, replayed in the order in which they were made, since each finds what the last
left in the cache; a small checkpoint of random weights under the recorded name; previews on.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from darkroom.engine.__main__ import main
from tests.engine.server import trace
from tests.engine.server.running_engine import RunningEngine, running_engine
from tests.parity.recorded import INPUTS
from tests.reference import REFERENCE

TRACES = REFERENCE / "ws_trace"
CLIENT_ID = "0123456789abcdef0123456789abcdef"
RECORDINGS = (
    "txt2img",
    "txt2img_cached",
    "txt2img_preview_metadata",
    "txt2img_partial_targets",
    "validation_errors",
    "runtime_error",
    "interrupt",
    "queue",
    "http",
)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    base = tmp_path_factory.mktemp("base")
    (base / "input").mkdir()
    for path in INPUTS.glob("*.png"):
        (base / "input" / path.name).write_bytes(path.read_bytes())
    assert main(["random-checkpoint", str(base / "models" / "checkpoints" / "sd15_small.safetensors")]) == 0
    with running_engine(base, "--preview-method", "latent2rgb") as running:
        yield running


@pytest.mark.parametrize("name", RECORDINGS)
async def test_recorded_requests_bring_the_recorded_messages(engine: RunningEngine, name: str) -> None:
    recording = trace.read(TRACES / f"{name}.jsonl")
    replay = trace.Replay(engine.url, recording)
    await replay.run(CLIENT_ID)
    own, recorded = trace.comparable(replay.received), trace.comparable(recording)
    if name == "txt2img_partial_targets":  # its second prompt has two outputs, whose order is a Python set's in ComfyUI
        own, recorded = trace.without_order_of_outputs(own), trace.without_order_of_outputs(recorded)
    assert own == recorded
    for entry, status, answer in replay.answers:
        about = f"{entry['method']} {entry['path']}"
        assert status == entry["status"], about
        wrong = trace.same_shape(entry.get("json"), answer)
        assert [problem for problem in wrong if ".prompt[]" not in problem] == [], about

"""The engine as a library: check, submit, interrupt, free, close."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from darkroom.contract.errors import PromptRejected
from darkroom.engine import Engine, EngineSettings, RunRequest
from darkroom.engine.errors import DeviceLost
from darkroom.engine.events import NodeStarted, RunInterrupted
from tests.contract.graph.declared import node
from tests.engine.runtime.small_nodes import Calls, small_nodes

PROMPT: dict[str, Any] = {"1": node("Number", value="2"), "2": node("Show", a=["1", 0])}
ENDLESS: dict[str, Any] = {"1": node("Wait", milliseconds=60_000), "2": node("Show", a=["1", 0])}


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
def engine(tmp_path: Path, calls: Calls) -> Iterator[Engine]:
    with Engine(EngineSettings(base_directory=tmp_path, cpu=True), small_nodes(calls)) as made:
        yield made


def run(engine: Engine, prompt: dict[str, Any], prompt_id: str = "p", on_event: Any = lambda event: None) -> Any:
    checked = engine.check(prompt)
    return engine.submit(RunRequest(prompt_id, checked.prompt, checked.outputs), on_event)


def test_a_checked_prompt_runs(engine: Engine) -> None:
    result = run(engine, PROMPT).result()
    assert (result.status, result.outputs) == ("success", {"2": {"number": [2]}})


def test_a_bad_prompt_is_rejected_before_anything_runs(engine: Engine) -> None:
    with pytest.raises(PromptRejected):
        engine.check({"1": node("Show")})


def test_an_error_after_the_nodes_of_a_run_reaches_whoever_waits(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise DeviceLost("the device is lost while weights leave it")

    with monkeypatch.context() as patch:
        patch.setattr(engine.memory.pool, "after_run", fail)
        with pytest.raises(DeviceLost):
            run(engine, PROMPT).result(timeout=60)
    assert run(engine, PROMPT).result(timeout=60).status == "success"


def test_prompts_run_in_the_order_of_submission(engine: Engine, calls: Calls) -> None:
    prompts = [
        {str(index): node("Number", value=1), "s": node("Save", a=[str(index), 0], prefix="file")} for index in range(3)
    ]
    futures = [run(engine, prompt) for prompt in prompts]
    assert [future.result().status for future in futures] == ["success"] * 3
    assert [item for item in calls if item != "s"] == ["0"]  # the others are the same node under other names
    assert [future.result().outputs["s"]["texts"][0]["filename"] for future in futures] == ["file_00001_.txt"] * 3


def test_an_interrupt_reaches_only_the_prompt_that_runs(engine: Engine) -> None:
    started = threading.Event()
    events: list[Any] = []

    def on_event(event: Any) -> None:
        events.append(event)
        if isinstance(event, NodeStarted):
            started.set()

    future = run(engine, ENDLESS, "long", on_event)
    assert started.wait(60)
    assert not engine.interrupt("other")
    assert engine.interrupt("long")
    assert future.result(10).status == "interrupted"
    assert isinstance(events[-1], RunInterrupted)
    assert not engine.interrupt()
    assert run(engine, PROMPT).result().status == "success"


def test_free_forgets_results(engine: Engine, calls: Calls) -> None:
    run(engine, PROMPT).result()
    engine.free(unload_models=True, free_memory=True)
    calls.clear()
    run(engine, PROMPT).result()
    assert calls == ["1", "2"]


def test_closing_ends_what_runs_and_takes_no_more(tmp_path: Path, calls: Calls) -> None:
    engine = Engine(EngineSettings(base_directory=tmp_path, cpu=True), small_nodes(calls))
    future = run(engine, ENDLESS)
    engine.close()
    assert future.result().status == "interrupted"
    with pytest.raises(RuntimeError):
        run(engine, PROMPT)


def test_a_report_names_the_device(engine: Engine) -> None:
    report = engine.memory.device.report()
    assert report.type == "cpu" and report.vram_total_bytes > 0


def test_importing_the_package_imports_no_torch() -> None:
    modules = (
        "darkroom.engine, darkroom.engine.settings, darkroom.contract.graph.validate, darkroom.engine.runtime.executor"
    )
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


def test_models_that_nodes_have_saved_are_found_again(engine: Engine, tmp_path: Path) -> None:
    for folder in ("checkpoints", "clip", "vae", "diffusion_models", "loras"):
        saved = tmp_path / "output" / folder / "sub"
        saved.mkdir(parents=True)
        (saved / f"{folder}.safetensors").write_bytes(b"")
    for kind, folder in (("checkpoints", "checkpoints"), ("text_encoders", "clip"), ("vae", "vae")):
        assert f"sub/{folder}.safetensors" in engine.folders.names(kind)
    assert engine.folders.path("loras", "sub/loras.safetensors") == tmp_path / "output/loras/sub/loras.safetensors"


def test_what_the_library_needs_is_importable_from_its_package() -> None:
    from darkroom import engine
    from darkroom.contract.errors import PromptRejected

    assert engine.PromptRejected is PromptRejected
    assert all(getattr(engine, name) is not None for name in engine.__all__)


def test_a_frozen_engine_takes_no_prompt_and_goes_on_after_the_thaw_with_seeds_of_its_own(
    engine: Engine, calls: Calls
) -> None:
    order: list[str] = []
    engine.on_freeze(lambda: order.append("freeze"))
    engine.on_thaw(lambda: order.append("thaw"))
    torch.manual_seed(1)
    expected = torch.rand(4)
    torch.manual_seed(1)
    engine.freeze()
    with pytest.raises(RuntimeError, match="frozen"):
        engine.submit(RunRequest("p", {}, ()), lambda event: None)
    with pytest.raises(RuntimeError, match="frozen already"):
        engine.freeze()
    engine.thaw()
    assert not torch.equal(torch.rand(4), expected)
    assert order == ["freeze", "thaw"]
    with pytest.raises(RuntimeError, match="not frozen"):
        engine.thaw()
    assert run(engine, PROMPT).result().status == "success"


def test_an_engine_does_not_go_on_on_another_device(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.freeze()
    other = replace(engine.measurements.device_identity(), name="another card")
    monkeypatch.setattr(engine.measurements, "device_identity", lambda: other)
    with pytest.raises(RuntimeError, match="another card"):
        engine.thaw()


@pytest.mark.slow
def test_a_part_that_continues_a_prompt_samples_anew_though_its_noise_is_the_same(tmp_path: Path) -> None:
    """The record of the part before would fit: noise and latent are the same, the words are not in it."""

    def drawn(engine: Engine, text: str, **request: Any) -> bytes:
        prompt = {
            "1": node("DarkroomRandomCheckpoint", family="sd15", scale="small", seed=1),
            "2": node("CLIPTextEncode", clip=["1", 1], text=text),
            "3": node("EmptyLatentImage", width=64, height=64, batch_size=1),
            "4": node("KSampler", model=["1", 0], positive=["2", 0], negative=["2", 0], latent_image=["3", 0], seed=5,
                      steps=2, cfg=1.0, sampler_name="euler", scheduler="normal", denoise=1.0),
            "5": node("SaveLatent", samples=["4", 0], filename_prefix="latent"),
        }  # fmt: skip
        checked = engine.check(prompt)
        extra = {"checkpoint": "a" * 32}
        run = RunRequest(text, checked.prompt, checked.outputs, extra, **request)
        result = engine.submit(run, lambda event: None).result(60)
        [latent] = result.outputs["5"]["latents"]
        return load_file(tmp_path / "output" / latent["filename"])["latent_tensor"].numpy().tobytes()

    settings = EngineSettings(
        base_directory=tmp_path, cpu=True, checkpoint_directory=tmp_path / "records", checkpoint_seconds=0.0
    )
    with Engine(settings) as engine:
        first, second = drawn(engine, "a dog"), drawn(engine, "a ship", continues="a dog", part=1)
    with Engine(replace(settings, checkpoint_directory=None)) as engine:
        assert [first, second] == [drawn(engine, "a dog"), drawn(engine, "a ship")]
    assert first != second

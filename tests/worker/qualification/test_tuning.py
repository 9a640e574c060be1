"""Tuning in the start-up benchmark: measured once for a kind of machine, handed on at later starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from darkroom.worker.cli.tuning import commands
from darkroom.worker.engines.client.client import EngineClient
from darkroom.worker.errors import EngineUnreachable
from darkroom.worker.qualification.facts import EngineFacts
from darkroom.worker.qualification.tuning import EngineTuning, machine_key, request_for
from darkroom.worker.qualification.tuning_store import NoOutcomes, TuningStore, read_exported
from darkroom.worker.qualification.workload import CPU_SCALE, DeviceFact, OwnWorkload, TextToImage, Workload

WORKLOAD = TextToImage(width_px=512, height_px=512, num_steps=20, checkpoint="random", scale=CPU_SCALE)
CHOICES = {"exact": {"names": ["prompt_cache"], "it_per_s": 2.0, "error": 0.0}}
OUTCOME = {
    "machine": {}, "network": "UnetModel", "fingerprint": "f", "vae": "", "workload": {"model": "random:default:small"},
    "plain_it_per_s": 1.0, "figures": [], "choices": CHOICES, "seconds": 1.0, "version": 2,
}  # fmt: skip


def facts(*, has_probe: bool = True, processor: str | None = "A, 2 cores, AVX2") -> EngineFacts:
    device = DeviceFact(name="cpu", kind="cpu")
    versions = {"engine": "darkroom 1", "torch": "2.13", "processor": processor}
    return EngineFacts(device, None, None, (), (), has_random_checkpoint=True, has_probe=has_probe, versions=versions)


class OwnEngine(EngineClient):
    def __init__(self, status: int = 200, fault: EngineUnreachable | None = None) -> None:
        super().__init__("http://127.0.0.1:1", has_check=True)
        self.status, self.fault = status, fault
        self.asked: list[tuple[str, Any]] = []
        self.calls.ask = self.ask  # type: ignore[method-assign]

    async def ask(
        self, method: str, path: str, body: Any = None, *, timeout_seconds: float = 1
    ) -> tuple[int, dict[str, Any]]:
        self.asked.append((method, body))
        if self.fault is not None:
            raise self.fault
        return self.status, dict(OUTCOME) if self.status == 200 else {"error": "no memory"}


async def tune(
    folder: Path,
    engine: OwnEngine,
    *,
    setting: str = "auto",
    workload: Workload = WORKLOAD,
    is_forced: bool = False,
    has_probe: bool = True,
) -> tuple[dict[str, Any] | None, str | None]:
    tuning = EngineTuning(setting, folder)
    return await tuning.tune(engine, facts(has_probe=has_probe), workload, "550", is_forced=is_forced)


async def test_an_engine_measures_once_and_is_given_the_outcome_at_later_starts(tmp_path: Path) -> None:
    first, again = OwnEngine(), OwnEngine()
    report, reason = await tune(tmp_path, first)
    assert report is not None and reason is None and not report["is_reused"] and report["outcomes"] == [OUTCOME]
    report, _ = await tune(tmp_path, again)
    assert first.asked[0][1]["budget_seconds"] == 30.0
    assert report is not None and report["is_reused"] and again.asked == [("PUT", OUTCOME)]
    forced = OwnEngine()
    await tune(tmp_path, forced, is_forced=True)
    assert [method for method, _ in forced.asked] == ["POST"]


async def test_an_outcome_of_another_model_is_given_and_the_model_is_measured(tmp_path: Path) -> None:
    await tune(tmp_path, OwnEngine())
    engine = OwnEngine()
    other = WORKLOAD.model_copy(update={"scale": None, "checkpoint": "a.safetensors"})
    report, _ = await tune(tmp_path, engine, workload=other)
    assert [method for method, _ in engine.asked] == ["PUT", "POST"]
    assert report is not None and not report["is_reused"]


async def test_strategies_that_the_setting_names_since_are_measured_at_the_next_start(tmp_path: Path) -> None:
    """Under `auto` some are not measured at all."""
    asked: list[list[str]] = []
    for setting in ("auto", "compiled_blocks", "compiled_blocks", " Compiled_Blocks", "auto", ""):
        engine = OwnEngine()
        report, _ = await tune(tmp_path, engine, setting=setting)
        assert report is not None
        asked.append([method for method, _ in engine.asked])
    assert asked == [["POST"], ["PUT", "POST"], ["PUT"], ["PUT"], ["PUT", "POST"], ["PUT"]]


def test_outcomes_of_other_shapes_are_kept_and_those_of_no_known_shape_are_dropped(tmp_path: Path) -> None:
    store = TuningStore(tmp_path)
    other = {**OUTCOME, "fingerprint": "g"}
    old = {name: value for name, value in OUTCOME.items() if name not in ("fingerprint", "vae")}
    store._file.put("card", {"UnetModel": old})
    for outcome in (OUTCOME, other, other):
        store.store("card", outcome)
    assert store.find("card") == [OUTCOME, other]


async def test_an_outcome_that_the_engine_does_not_take_is_measured_anew(tmp_path: Path) -> None:
    await tune(tmp_path, OwnEngine())
    engine = OwnEngine(status=400)
    assert await tune(tmp_path, engine) == (None, "no memory")
    assert [method for method, _ in engine.asked] == ["PUT", "POST"]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"setting": "off"}, "TUNING=off"),
        ({"has_probe": False}, "A foreign engine is not tuned"),
        ({"workload": OwnWorkload(name="a", digest="b", workflow={})}, "The workflow is the user's own"),
    ],
)
async def test_says_why_nothing_was_tuned(given: dict[str, Any], reason: str, tmp_path: Path) -> None:
    engine = OwnEngine()
    assert await tune(tmp_path, engine, **given) == (None, reason)
    assert not engine.asked


async def test_an_engine_out_of_reach_fails_no_benchmark(tmp_path: Path) -> None:
    engine = OwnEngine(fault=EngineUnreachable("Cannot connect to the engine"))
    assert await tune(tmp_path, engine) == (None, "Cannot connect to the engine")


def test_a_processor_is_measured_with_a_small_image() -> None:
    body = request_for(WORKLOAD, is_cpu=True)
    assert (body["width_px"], body["scale"], body["family"]) == (64, "small", None)
    named = WORKLOAD.model_copy(update={"scale": None, "checkpoint": "a.safetensors"})
    body = request_for(named, is_cpu=False)
    assert (body["width_px"], body["checkpoint"]) == (512, "a.safetensors") and "scale" not in body


def test_machines_of_one_kind_share_a_key() -> None:
    assert machine_key(facts(), "550") == machine_key(facts(), "550") != machine_key(facts(), "551")


def test_processors_of_two_kinds_have_their_own_outcomes() -> None:
    keys = {machine_key(facts(processor=name), None) for name in ("A, 2 cores, AVX2", "A, 2 cores, AVX512", None)}
    assert len(keys) == 3


def test_a_fleet_tunes_once_for_each_kind_of_machine(tmp_path: Path) -> None:
    here, there, file = tmp_path / "here", tmp_path / "there", tmp_path / "tuning.json"
    TuningStore(here).store("card", OUTCOME)
    runner = CliRunner()
    assert runner.invoke(commands, ["export", str(file), "--state-directory", str(here)]).exit_code == 0
    done = runner.invoke(commands, ["import", str(file), "--state-directory", str(there)])
    assert (done.exit_code, done.stdout) == (0, "card\n")
    assert TuningStore(there).find("card") == [OUTCOME]


def test_there_is_nothing_to_export_before_the_worker_is_tuned(tmp_path: Path) -> None:
    assert CliRunner().invoke(commands, ["export", "--state-directory", str(tmp_path)]).exit_code == 4


@pytest.mark.parametrize(
    "content",
    ["{", "[]", '{"version": 2}', '{"version": 1, "results": {"card": {"UnetModel": {"network": "UnetModel"}}}}',
     '{"version": 1, "results": {"card": 3}}'],
)  # fmt: skip
def test_a_file_without_outcomes_is_refused_and_changes_nothing(content: str, tmp_path: Path) -> None:
    file = tmp_path / "in.json"
    file.write_text(content)
    with pytest.raises(NoOutcomes):
        TuningStore(tmp_path).add(read_exported(file))
    assert CliRunner().invoke(commands, ["import", str(file), "--state-directory", str(tmp_path)]).exit_code == 4
    assert not TuningStore(tmp_path).has_outcomes


def test_what_is_kept_is_plain_json(tmp_path: Path) -> None:
    TuningStore(tmp_path).store("card", OUTCOME)
    assert json.loads((tmp_path / "tuning.json").read_text())["results"]["card"]["UnetModel:f"] == OUTCOME

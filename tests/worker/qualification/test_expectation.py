"""The measure of a machine: the operator, the fleet's history, the published table, in this order."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from darkroom.worker.qualification.expectation import (
    PastRun,
    append_history,
    expect,
    history_key,
    history_line,
    read_history,
    read_reference,
)
from darkroom.worker.qualification.verdict import BenchmarkReport, Verdict
from darkroom.worker.qualification.workload import DeviceFact, OwnWorkload, TextToImage

CARD = DeviceFact(name="cuda:0 NVIDIA GeForce RTX 4090 : native", kind="cuda")
FULL = TextToImage(width_px=512, height_px=512, num_steps=20, checkpoint="random", scale="full")


@dataclass(frozen=True)
class Limits:
    max_seconds: float | None = None


def past(*rates: float) -> list[PastRun]:
    return [PastRun(history_key(CARD, FULL), rate, 20 / rate) for rate in rates]


def test_every_figure_of_the_table_has_a_source() -> None:
    table = read_reference()
    assert table["geforce rtx 4090"].its_per_second == 43
    assert all(gpu.source and gpu.its_per_second > 0 for gpu in table.values())


def test_the_operators_word_comes_first_then_the_fleets_then_the_tables() -> None:
    table = read_reference()
    asked = expect(Limits(max_seconds=2.0), FULL, CARD, past(50, 51, 52), table)
    assert (asked.max_seconds, asked.expected_its, asked.source) == (2, None, "BENCHMARK_MAX_SECONDS")
    fleet = expect(Limits(), FULL, CARD, past(50, 51, 52), table)
    assert fleet.expected_its == 51 and "BENCHMARK_HISTORY" in str(fleet.source)
    published = expect(Limits(), FULL, CARD, past(50, 51), table)
    assert published.expected_its == 43 and "pyworker" in str(published.source)


def test_the_fleet_speaks_only_of_the_same_gpu_model_and_size() -> None:
    runs = past(50, 51, 52)
    other = DeviceFact(name="cuda:0 NVIDIA L4", kind="cuda")
    assert not expect(Limits(), FULL, other, runs, {}).is_known
    assert not expect(Limits(), FULL.model_copy(update={"width_px": 768}), CARD, runs, {}).is_known


def test_the_table_speaks_only_of_the_full_network_at_512() -> None:
    table = read_reference()
    assert not expect(Limits(), FULL.model_copy(update={"width_px": 768}), CARD, [], table).is_known
    assert not expect(Limits(), OwnWorkload(name="a", digest="b", workflow={}), CARD, [], table).is_known


def test_of_a_cpu_nothing_is_expected_but_what_is_asked_for() -> None:
    cpu = DeviceFact(name="cpu", kind="cpu")
    runs = [PastRun(history_key(cpu, FULL), 1.0, 20.0)] * 5
    assert not expect(Limits(), FULL, cpu, runs, read_reference()).is_known
    assert expect(Limits(max_seconds=1.0), FULL, cpu, runs, {}).max_seconds == 1


def test_a_workflow_without_steps_is_measured_by_the_fleets_seconds() -> None:
    own = OwnWorkload(name="a", digest="b", workflow={})
    runs = [PastRun(history_key(CARD, own), None, seconds) for seconds in (4.0, 5.0, 9.0)]
    assert expect(Limits(), own, CARD, runs, {}).expected_seconds == 5


def test_runs_are_added_and_read_back_and_machines_that_were_broken_do_not_count(tmp_path: Path) -> None:
    file = tmp_path / "shared" / "history.jsonl"
    for verdict in (Verdict.PASS, Verdict.SLOW, Verdict.FAULTY, Verdict.THROTTLED):
        report = BenchmarkReport(verdict=verdict, its_per_second=40, seconds_per_picture=0.6)
        append_history(file, history_line(report, CARD, FULL, 1000.0))
    with file.open("a") as open_file:
        open_file.write('{"key": "cut o\n' + json.dumps({"key": "later version"}) + "\n")
    assert read_history(file) == [PastRun(history_key(CARD, FULL), 40.0, 0.6)] * 2
    assert read_history(None) == [] and read_history(tmp_path / "none") == []

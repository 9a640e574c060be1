"""A good benchmark result is kept for the next start, under everything that could change it."""

from __future__ import annotations

from pathlib import Path

import pytest

from darkroom.worker.qualification.benchmark_cache import MAX_RESULTS, BenchmarkCache
from darkroom.worker.qualification.facts import EngineFacts
from darkroom.worker.qualification.qualifier import cache_key
from darkroom.worker.qualification.verdict import BenchmarkReport, Verdict
from darkroom.worker.qualification.workload import CheckpointFact, DeviceFact, TextToImage

REPORT = BenchmarkReport(verdict=Verdict.PASS, its_per_second=43.0, seconds_per_picture=0.5)


def test_a_result_stands_for_its_time_and_no_longer(tmp_path: Path) -> None:
    BenchmarkCache(tmp_path).store("key", REPORT, 1000.0)
    found = BenchmarkCache(tmp_path).find("key", 1060.0, 60.0)
    assert found is not None and found.report == REPORT and found.measured_at == 1000
    assert BenchmarkCache(tmp_path).find("key", 1060.1, 60.0) is None
    assert BenchmarkCache(tmp_path).find("key", 999.0, 60.0) is None  # the clock was set back
    assert BenchmarkCache(tmp_path).find("other", 1000.0, 60.0) is None


def test_a_result_can_be_forgotten(tmp_path: Path) -> None:
    cache = BenchmarkCache(tmp_path)
    cache.store("a", REPORT, 1000.0)
    cache.store("b", REPORT, 1000.0)
    cache.remove("a")
    assert cache.find("a", 1000.0, 60.0) is None and cache.find("b", 1000.0, 60.0) is not None


@pytest.mark.parametrize("content", ["", "{", '{"version": 2, "results": {"key": {}}}', '{"version": 1, "results": 3}'])
def test_a_file_that_cannot_be_read_counts_as_empty_and_is_written_anew(tmp_path: Path, content: str) -> None:
    (tmp_path / "benchmark.json").write_text(content)
    cache = BenchmarkCache(tmp_path)
    assert cache.find("key", 1000.0, 60.0) is None
    cache.store("key", REPORT, 1000.0)
    assert cache.find("key", 1000.0, 60.0) is not None


def test_an_entry_of_another_shape_is_none(tmp_path: Path) -> None:
    (tmp_path / "benchmark.json").write_text(
        '{"version": 1, "results": {"key": {"measured_at": 1000, "report": {"verdict": "new"}}}}'
    )
    assert BenchmarkCache(tmp_path).find("key", 1000.0, 60.0) is None


def test_the_oldest_results_make_room(tmp_path: Path) -> None:
    cache = BenchmarkCache(tmp_path)
    for number in range(MAX_RESULTS + 2):
        cache.store(str(number), REPORT, 1000.0)
    assert cache.find("1", 1000.0, 60.0) is None and cache.find("2", 1000.0, 60.0) is not None


def test_only_the_worker_may_read_the_file(tmp_path: Path) -> None:
    BenchmarkCache(tmp_path).store("key", REPORT, 1000.0)
    assert (tmp_path / "benchmark.json").stat().st_mode & 0o777 == 0o600


def facts(**changes: object) -> EngineFacts:
    given: dict[str, object] = {
        "device": DeviceFact(name="cuda:0 NVIDIA L4", kind="cuda"),
        "uuid": "u1",
        "address": None,
        "families": (),
        "checkpoints": (CheckpointFact(name="a", family="plain", scale="full", size_bytes=5),),
        "has_random_checkpoint": True,
        "has_probe": True,
        "versions": {"engine": "darkroom 1", "torch": "2.13", "precision": "float16"},
    }
    return EngineFacts(**(given | changes))  # type: ignore[arg-type]


def test_a_result_stands_only_for_the_same_gpu_driver_engine_model_and_size() -> None:
    full = TextToImage(width_px=512, height_px=512, num_steps=20, checkpoint="random", scale="full")
    keys = [
        cache_key(facts(), full, "580"),
        cache_key(facts(), full, "590"),
        cache_key(facts(uuid="u2"), full, "580"),
        cache_key(facts(address="http://10.0.0.1:8188"), full, "580"),
        cache_key(facts(device=DeviceFact(name="cuda:0 NVIDIA A10", kind="cuda")), full, "580"),
        cache_key(facts(versions={"engine": "darkroom 2", "torch": "2.13", "precision": "float16"}), full, "580"),
        cache_key(facts(), full.model_copy(update={"num_steps": 30}), "580"),
        cache_key(facts(), full.model_copy(update={"checkpoint": "a", "scale": None}), "580"),
        cache_key(
            facts(checkpoints=(CheckpointFact(name="a", family="plain", scale="full", size_bytes=6),)),
            full.model_copy(update={"checkpoint": "a", "scale": None}),
            "580",
        ),
    ]
    assert len(set(keys)) == len(keys)
    assert cache_key(facts(), full, "580") == keys[0]

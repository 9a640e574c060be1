"""Metrics that engines report themselves, beside what an engine with custom nodes might send."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from darkroom.worker.engines.metrics import MAX_TEXT_LENGTH, EngineMetrics

STEPS = """# HELP darkroom_sampling_steps_total Sampling steps
# TYPE darkroom_sampling_steps_total counter
darkroom_sampling_steps_total 20.0
"""


def shown(*texts: str) -> str:
    metrics = EngineMetrics(lambda: [])
    metrics.show(dict(enumerate(texts)))
    registry = CollectorRegistry()
    registry.register(metrics)
    return generate_latest(registry).decode()


def test_engines_have_a_series_each() -> None:
    text = shown(STEPS, STEPS.replace("20.0", "7.0"))
    assert 'darkroom_sampling_steps_total{engine="0"} 20.0' in text
    assert 'darkroom_sampling_steps_total{engine="1"} 7.0' in text
    assert text.count("# TYPE darkroom_sampling_steps_total") == 1


def test_an_engine_adds_nothing_under_the_front_s_names_nor_in_another_s_place() -> None:
    text = shown(
        'darkroom_jobs{state="pending"} 5\ndarkroom_memory_available_bytes 1\ndarkroom_engine_up{engine="0"} 0\nup 1\n'
        'darkroom_sampling_steps_total{engine="9"} 3\n'
    )
    samples = [line for line in text.splitlines() if not line.startswith("#")]
    assert samples == ['darkroom_sampling_steps_total{engine="0"} 3.0']


def test_what_does_not_parse_or_is_too_long_is_left_out_and_the_others_are_shown() -> None:
    text = shown(
        "darkroom_runs_total{", 'darkroom_runs_total{state="a", ="b"} 1\n', STEPS + "#" * MAX_TEXT_LENGTH, STEPS
    )
    assert [line for line in text.splitlines() if not line.startswith("#")] == [
        'darkroom_sampling_steps_total{engine="3"} 20.0'
    ]

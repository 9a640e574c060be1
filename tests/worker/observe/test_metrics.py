"""The metrics of a front: what is there from the start, how it is named, what requests and jobs add."""

from __future__ import annotations

import re

from prometheus_client.parser import text_string_to_metric_families

from tests.fakes import draw
from tests.worker.running_front import RunningFront, until

UNITS = (
    *("_seconds", "_bytes", "_ratio", "_celsius", "_watts", "_hertz", "_units", "_units_per_second", "_info"),
    *("_steps_per_second", "_total"),
)
COUNTS = frozenset(
    {
        *("darkroom_jobs", "darkroom_queue_jobs", "darkroom_webhooks", "darkroom_cpu_cores", "darkroom_front_tasks"),
        *("darkroom_front_threads", "darkroom_engine_prompts", "darkroom_benchmark_verdict", "darkroom_engine_state"),
        *("darkroom_ready", "darkroom_engine_up", "darkroom_operator_needed", "darkroom_gpu_throttled"),
        *("darkroom_engine_seconds_without_progress", "darkroom_model_file_downloads"),
    }
)
"""Plain numbers: of things, and of what is true."""


async def text_of(front: RunningFront) -> str:
    return (await front.http.get("/metrics")).text


def series_in(text: str) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    return {
        (sample.name, tuple(sorted(sample.labels.items())))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_a_fresh_worker_has_few_series_and_none_of_routes_that_nobody_called(front: RunningFront) -> None:
    found = series_in(await text_of(front))
    assert len(found) < 600
    routes = {labels["route"] for _, shown in found if "route" in (labels := dict(shown))}
    assert len(routes) <= 3  # what the test's fixtures asked for


async def test_whatever_strangers_call_adds_few_series(front: RunningFront) -> None:
    await text_of(front)
    before = len(series_in(await text_of(front)))
    for index in range(60):
        await front.http.request(f"BREW{index}", f"/tea/{index}")
        await front.http.get(f"/result/unknown-{index}?name={index}", headers={"x-label": f"{index}"})
    assert len(series_in(await text_of(front))) - before <= 40


async def test_no_series_but_those_of_routes_appears_with_the_first_event(front: RunningFront) -> None:
    await text_of(front)  # so that the scrape itself has been counted
    before = series_in(await text_of(front))
    assert (await front.sync(draw())).status_code == 200
    assert (await front.sync({"1": {"class_type": "None"}})).status_code == 422
    assert (await front.http.get("/result/unknown")).status_code == 404
    after = series_in(await text_of(front))
    assert sorted(item for item in after - before if "route" not in dict(item[1])) == []


async def test_every_metric_has_help_and_a_unit(front: RunningFront) -> None:
    text = await text_of(front)
    named = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    explained = dict(re.findall(r"^# HELP (\S+) (.+)$", text, re.MULTILINE))
    assert set(named) == set(explained)
    assert not [
        name for name in named if name.startswith("darkroom_") and not name.endswith(UNITS) and name not in COUNTS
    ]
    assert not [name for name, kind in named.items() if kind == "counter" and not name.endswith("_total")]
    assert "_created" not in text


async def test_engines_are_named_by_their_place_and_not_by_their_port(front: RunningFront) -> None:
    text = await text_of(front)
    assert 'darkroom_engine_up{engine="0"} 1.0' in text
    assert 'darkroom_engine_restarts_total{engine="0",reason="crashed"} 0.0' in text
    ports = [line for line in text.splitlines() if front.engine.url in line]
    assert ports == [f'darkroom_engine_address_info{{address="{front.engine.url}",engine="0"}} 1.0']


async def test_requests_are_counted_by_route_and_code_and_timed(front: RunningFront) -> None:
    await front.http.get("/result/a")
    await front.http.get("/result/b")
    await front.http.get("/nothing/here")

    async def are_counted() -> bool:
        text = await text_of(front)
        return (
            'darkroom_http_requests_total{code="404",method="GET",route="/result/{job_id}"} 2.0' in text
            and 'darkroom_http_requests_total{code="404",method="GET",route="none"} 1.0' in text
            and 'darkroom_http_request_seconds_count{code="4xx",method="GET",route="/result/{job_id}"} 2.0' in text
        )

    await until(are_counted, 5)


async def test_waiting_running_and_the_seconds_of_an_image_are_measured_apart(front: RunningFront) -> None:
    assert (await front.sync(draw())).status_code == 200
    text = await text_of(front)
    for name in ("job_wait", "job_run", "job", "picture"):
        assert f"darkroom_{name}_seconds_count 1.0" in text
    assert "darkroom_queue_jobs 0.0" in text and "darkroom_queue_oldest_age_seconds 0.0" in text

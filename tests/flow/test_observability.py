"""Rules, dashboard and pages beside the metrics of a real run: every name and label that they use exists.

The GPU's metrics come from a management library of our own making, since the worker of the tests has no GPU.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from darkroom.worker.observe.gpu_metrics import GpuMetrics
from tests.flow.bodies import workflow_request
from tests.flow.running_worker import RunningWorker
from tests.promtool import find_prometheus
from tests.s3_server import free_ports
from tests.worker.nvml import Nvml

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "observability"
DASHBOARD = FOLDER / "grafana" / "dashboards" / "darkroom.json"
PAGES = ("docs/observability.md", "docs/deploying.md", "docs/benchmark.md", "docs/engines.md")
OF_PROMETHEUS = frozenset({"instance", "job", "le"})
SELECTOR = re.compile(r"\b(darkroom_[a-z0-9_]+)\b(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
GROUPING = re.compile(r"\bby\s*\(([^)]*)\)")

Series = dict[str, list[dict[str, str]]]


@pytest.fixture(scope="module")
def exposition(worker: RunningWorker) -> str:
    """The metrics of a worker that has drawn an image, with two GPUs added."""
    assert worker.generate(workflow_request()).status_code == 200
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "pynvml", Nvml())
        gpus = GpuMetrics()
        asyncio.run(gpus.read())
    registry = CollectorRegistry()
    registry.register(gpus)
    own = [line for line in worker.get("/metrics").text.splitlines() if "darkroom_gpu_" not in line]
    return "\n".join([*own, generate_latest(registry).decode()])


@pytest.fixture(scope="module")
def series(exposition: str) -> Series:
    found: Series = {}
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(dict(sample.labels))
    return found


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return find_prometheus(tmp_path_factory.mktemp("prometheus"))


def rules() -> Iterator[tuple[str, str]]:
    for group in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]


def panels() -> Iterator[tuple[str, str]]:
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def problems_of(query: str, series: Series) -> Iterator[str]:
    """Yield a problem for each name, label or value of a query that no series has."""
    used: list[dict[str, str]] = []
    for name, matchers in SELECTOR.findall(query):
        if name not in series:
            yield f"{name} does not exist"
            continue
        used += series[name]
        for label, _, value in MATCHER.findall(matchers):
            values = {labels.get(label) for labels in series[name]}
            if label not in OF_PROMETHEUS and not set(value.split("|")) <= values:
                yield f"{name} has no {label}={value!r}; it has {sorted(map(str, values))}"
    known = {label for labels in used for label in labels} | OF_PROMETHEUS
    for group in GROUPING.findall(query):
        for label in (part.strip() for part in group.split(",")):
            if label not in known:
                yield f"nothing in it has the label {label}"


def test_a_query_that_names_what_is_not_there_is_found(series: Series) -> None:
    assert list(problems_of('sum by (colour) (darkroom_jobs{state="red"})', series)) and not list(
        problems_of('sum by (state) (darkroom_jobs{state=~"pending|generating"})', series)
    )
    assert list(problems_of("darkroom_nothing", series)) == ["darkroom_nothing does not exist"]


@pytest.mark.parametrize("where", ["rules", "panels"])
def test_every_query_names_series_of_a_real_run(series: Series, where: str) -> None:
    queries = list(rules() if where == "rules" else panels())
    assert len(queries) > 15
    assert not [(title, problem) for title, query in queries for problem in problems_of(query, series)]


def test_the_engine_s_own_figures_reach_the_front_s_endpoint(series: Series, exposition: str) -> None:
    assert {labels["engine"] for labels in series["darkroom_sampling_steps_total"]} == {"0"}
    assert re.search(r'darkroom_runs_total\{engine="0",outcome="success"\} [1-9]', exposition)
    assert re.search(r'darkroom_sampling_steps_total\{engine="0"\} [1-9]', exposition)
    assert re.search(r'darkroom_model_read_seconds_count\{engine="0"\} [1-9]', exposition)


def test_the_page_lists_every_metric_and_no_other(exposition: str) -> None:
    declared = set(re.findall(r"^# TYPE (darkroom_\S+)", exposition, re.MULTILINE))
    listed = set(re.findall(r"^\| `(darkroom_[a-z0-9_]+)`", (ROOT / "docs/observability.md").read_text(), re.MULTILINE))
    only_with_device = {"darkroom_memory_device_allocated_bytes", "darkroom_memory_device_unaccounted_bytes"}
    only_after_failures = {"darkroom_tuning_strategy_failures_total"}  # it has a series for each strategy that failed
    assert listed - only_with_device - only_after_failures - {"darkroom_memory_device_peak_bytes"} == declared
    for page in PAGES:
        named = {name for name, _ in SELECTOR.findall((ROOT / page).read_text())}
        plain = {
            re.sub(r"_(bucket|sum|count|total)$", "", name)
            for name in declared | only_with_device | only_after_failures
        }
        assert not [name for name in named if re.sub(r"_(bucket|sum|count|total)$", "", name) not in plain | listed]


def test_panels_lie_beside_one_another_and_each_has_a_title_and_a_unit() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    places: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & places and max(x for x, _ in cells) < 24
        places |= cells
        assert panel["title"] and (panel["type"] == "row" or panel["fieldConfig"]["defaults"]["unit"])
    numbers = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(numbers)) == len(numbers)


def test_the_compose_file_mounts_what_is_there_and_the_dashboard_finds_its_source() -> None:
    compose = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    mounts = [volume for service in compose["services"].values() for volume in service["volumes"]]
    own = [volume.split(":")[0] for volume in mounts if volume.startswith("./")]
    assert len(own) == 4 and all((FOLDER / path).exists() for path in own)
    assert {volume.split(":")[0] for volume in mounts if not volume.startswith("./")} == set(compose["volumes"])
    source = yaml.safe_load((FOLDER / "grafana/provisioning/datasources/prometheus.yml").read_text())["datasources"][0]
    assert source["url"] == "http://prometheus:9090" and "prometheus" in compose["services"]
    provider = yaml.safe_load((FOLDER / "grafana/provisioning/dashboards/darkroom.yml").read_text())["providers"][0]
    assert provider["options"]["path"] in "".join(mounts)


@pytest.mark.slow
def test_promtool_accepts_the_metrics_the_configuration_and_the_rules(programs: Path, exposition: str) -> None:
    promtool = str(programs / "promtool")
    for command, given in (
        (["check", "metrics"], exposition + "\n"),
        (["check", "rules", "alerts.yml"], None),
        (["check", "config", "prometheus.yml"], None),
        (["test", "rules", "alerts_test.yml"], None),
    ):
        done = subprocess.run([promtool, *command], cwd=FOLDER, input=given, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


def _filled(query: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        query = query.replace(name, value)
    return query


@contextmanager
def running_prometheus(programs: Path, folder: Path, worker: RunningWorker) -> Iterator[str]:
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(FOLDER / "alerts.yml")]
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [worker.url.removeprefix("http://")]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    (port,) = free_ports(1)
    process = subprocess.Popen(
        [
            *(str(programs / "prometheus"), f"--config.file={folder}/prometheus.yml"),
            *(f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}"),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=20)


@pytest.mark.slow
def test_a_real_prometheus_reads_the_worker_and_evaluates_every_query(
    programs: Path, worker: RunningWorker, tmp_path: Path
) -> None:
    with running_prometheus(programs, tmp_path, worker) as url, httpx.Client(base_url=url, trust_env=False) as http:

        def ask(query: str) -> Any:
            reply = http.get("/api/v1/query", params={"query": query}).json()
            assert reply["status"] == "success", (query, reply)
            return reply["data"]["result"]

        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                is_ready = http.get("/-/ready").status_code == 200
                if is_ready and ask("count_over_time(darkroom_ready[1m]) >= 4"):
                    break
            except httpx.TransportError:
                pass
            time.sleep(0.2)
        assert ask('up{job="darkroom"} == 1')
        shown = [
            (title, query.replace("$__rate_interval", "1m").replace("$instance", ".*")) for title, query in panels()
        ]
        empty = {title for title, query in shown if not ask(query)}
        expected = {title for title, query in shown if "darkroom_gpu_" in query or "> 0" in query}
        assert empty <= expected
        state = http.get("/api/v1/rules").json()["data"]["groups"][0]["rules"]
        assert len(state) == len(list(rules())) and all(rule["health"] == "ok" for rule in state)

"""Command `darkroom plan FILE`: what a workflow would need on a worker, as text or JSON."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import typer
from rich.console import Console

from darkroom.contract.missing_file import unreadable_file
from darkroom.worker.cli.chosen_worker import ChosenWorker
from darkroom.worker.cli.worker_alone import worker_alone
from darkroom.worker.cli.worker_client import worker_client
from darkroom.worker.errors import EngineStartFailed
from darkroom.worker.json.values import JsonObject
from darkroom.worker.prompts.workflows.media import NoWorkflow, find_workflow

START_SECONDS = 300.0
LOOK_SECONDS = 0.2
LOG_LINES = 10
NOTHING = ("PRELOAD_MODELS", "WARMUP_WORKFLOWS", "BROKER_URL", "GATEWAY_URL", "DATABASE_URL", "ENGINE_URL")
NO_KEYS = ("API_KEYS", "API_KEYS_FILE", "ADMIN_API_KEYS", "ADMIN_API_KEYS_FILE")
ALONE = {
    **dict.fromkeys((*NOTHING, *NO_KEYS), ""),
    **{"BENCHMARK": "off", "CPU": "true", "LOG_FORMAT": "console", "MIN_FREE_MEMORY_BYTES": "0"},
}
"""Settings of a worker that only plans."""


def plan_lines(plan: Mapping[str, Any]) -> Iterator[str]:
    """Yield a plan as lines of text."""
    for node in plan["missing_nodes"]:
        pack, comfyui = node["pack"], node.get("comfyui")
        where = f"in {pack['name']} {pack['url']}".rstrip() if pack else "in no pack that is known here"
        if comfyui:
            yield f"missing node   {comfyui['message']}"
            continue
        yield f"missing node   {node['class_type']} ({where})"
    for model in plan["models"]:
        kind = model.get("kind") or "/".join(model["kinds"]) or "?"
        size = f"{model['size_bytes'] / 1e9:.2f} GB" if model.get("size_bytes") else "unknown size"
        source = f"{size} from {model['sources'][0]}" if model["sources"] else "no source is known"
        yield f"missing model  {kind}/{model['name']} ({source}{'; a job fetches it' if model['is_fetched'] else ''})"
    if plan.get("summary"):
        yield f"               {plan['summary']}"
    for item in plan.get("inputs", ()):
        yield f"to send        {item['class_type']}.{item['field']} (node {item['node_id']}): {item['name']}"
    if plan.get("inputs"):
        yield "               as a URL, base64 or a part of a form, or with CLASS.INPUT=@FILE of `darkroom generate`"
    for name in ("problems", "limits"):
        for problem in plan[name]:
            place = " ".join(str(problem[key]) for key in ("node_id", "field") if problem.get(key))
            yield f"{name.removesuffix('s'):15}{f'{place}: ' if place else ''}{problem['message']}"
    fetch, estimate = plan["fetch"], plan["estimate"]
    if fetch["num_files"]:
        unknown = f", {fetch['num_of_unknown_size']} of unknown size" if fetch["num_of_unknown_size"] else ""
        room = "" if fetch["fits"] else f"; only {fetch['free_bytes'] / 1e9:.2f} GB are free"
        size = f", {fetch['bytes'] / 1e9:.2f} GB" if fetch["bytes"] else ""
        yield f"to fetch       {fetch['num_files']} file{'s' if fetch['num_files'] > 1 else ''}{size}{unknown}{room}"
    if estimate["load_units"] is not None:
        source = estimate["source"]
        is_known = estimate["run_seconds"] is not None
        seconds = f", about {estimate['run_seconds']:g} s ({source})" if is_known else f", seconds unknown: {source}"
        price = "" if estimate["price"] is None else f", price {estimate['price']:.4g}"
        wait = f", wait {estimate['wait_seconds']:g} s"
        yield f"run            {estimate['load_units']:g} units of load{seconds}{wait}{price}"
    elif estimate["source"]:
        yield f"run            unknown: {estimate['source']}"
    yield from _memory_lines(plan.get("memory"))
    yield "it can run" if plan["can_run"] else "it cannot run as it is"


def _memory_lines(memory: Mapping[str, Any] | None) -> Iterator[str]:
    if not memory:
        return
    for stage in memory["stages"]:
        streamed = f", {_gib(stage['streamed_bytes'])} layer by layer" if stage["streamed_bytes"] else ""
        leaving = " and ".join(f"the {_model_of(item)}" for item in stage["evicted"])
        evicted = f"; {leaving} must leave" if leaving else ""
        lacking = f", {_gib(stage['missing_bytes'])} lack" if stage["missing_bytes"] else ""
        place = f"{_model_of(stage)} (node {stage['node_id']})"
        taken = f"{_gib(stage['device_bytes'])} of {_gib(memory['total_bytes'])}"
        yield f"memory         {place}: {_gib(stage['weights_bytes'])}, takes {taken}{streamed}{lacking}{evicted}"
    refused = {item["model"]: item["found"] for item in memory.get("refused", ())}
    for name in memory["unknown"]:
        yield f"memory         {name}: {refused.get(name, 'unknown size')}"


def _model_of(item: Mapping[str, Any]) -> str:
    return f"{item['stage'].replace('_', ' ')} of {item['model']}"


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 30):.2f} GiB"


def run(
    file: Path, worker: ChosenWorker, api_key: str, terms: Mapping[str, str], *, is_json: bool, may_start: bool
) -> int:
    """Print the plan of the workflow in a file. Return the exit code: 1 if it cannot run, 2 without an answer.

    `terms` are parameters of `/plan`: `card`, `vram_gb`, `price_per_hour`.

    With `may_start` a worker is started for the plan where none answers.
    """
    try:
        workflow = find_workflow(file.read_bytes())
    except OSError as error:
        return _fail(f"{file}: {unreadable_file(file, error)}")
    except NoWorkflow as error:
        return _fail(f"{file}: {error}")
    try:
        with worker_client(api_key=api_key, timeout=60, verify=worker.verify) as http:
            response = _ask(http, worker.url, workflow, terms)
    except httpx.TransportError as error:
        if not may_start:
            return _fail(worker.no_answer(error))
        typer.echo(f"No worker answers at {worker.url}: starting one for the plan", err=True)
        try:
            response = _ask_own(workflow, terms)
        except EngineStartFailed as failure:
            return _fail(failure.message)
    answer = response.json()
    if response.status_code != 200:
        return _fail(f"{worker.url} refused: {response.status_code} {answer.get('message', '')}")
    if is_json:
        Console().print_json(data=answer)
    else:
        for line in plan_lines(answer):
            typer.echo(line)
    return 0 if answer["can_run"] else 1


def _ask(http: httpx.Client, url: str, workflow: JsonObject, terms: Mapping[str, str]) -> httpx.Response:
    return http.post(f"{url}/plan", params=dict(terms), json={"workflow_json": workflow})


def _ask_own(workflow: JsonObject, terms: Mapping[str, str]) -> httpx.Response:
    """Return the reply of a worker on the processor that has no jobs, keys, broker or database of its own.

    Raises EngineStartFailed with the end of its log.
    """
    with tempfile.TemporaryDirectory() as folder, Path(folder, "log.txt").open("w+b") as log:
        changes = {**ALONE, "STATE_DIRECTORY": str(Path(folder, "state"))}
        with worker_alone(changes, log) as (process, url), worker_client(timeout=60) as http:
            until_seconds = time.monotonic() + START_SECONDS
            while process.poll() is None and time.monotonic() < until_seconds:
                try:
                    if http.get(f"{url}/ready").status_code == 200:
                        return _ask(http, url, workflow, terms)
                except httpx.TransportError:
                    pass
                time.sleep(LOOK_SECONDS)
        log.seek(0)
        lines = log.read().decode(errors="replace").splitlines()
        raise EngineStartFailed("The worker for the plan did not start:\n" + "\n".join(lines[-LOG_LINES:]))


def _fail(text: str) -> int:
    typer.echo(text, err=True)
    return 2

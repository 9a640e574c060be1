"""Command `darkroom plan FILE`: what a workflow would need on a worker, as text or JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import typer
from rich.console import Console

from worker.chosen_worker import ChosenWorker
from worker.worker_client import worker_client
from worker.workflows.media import NoWorkflow, find_workflow


def plan_lines(plan: Mapping[str, Any]) -> Iterator[str]:
    """Yield a plan as lines of text."""
    for node in plan["missing_nodes"]:
        pack = node["pack"]
        where = f"in {pack['name']} {pack['url']}".rstrip() if pack else "in no pack that is known here"
        yield f"missing node   {node['class_type']} ({where})"
    for model in plan["models"]:
        kind = model.get("kind") or "/".join(model["kinds"]) or "?"
        size = f"{model['size_bytes'] / 1e9:.2f} GB" if model.get("size_bytes") else "unknown size"
        source = f"{size} from {model['sources'][0]}" if model["sources"] else "no source is known"
        yield f"missing model  {kind}/{model['name']} ({source}{'; a job fetches it' if model['is_fetched'] else ''})"
    for name in ("problems", "limits"):
        for problem in plan[name]:
            place = " ".join(str(problem[key]) for key in ("node_id", "field") if problem.get(key))
            yield f"{name.removesuffix('s'):15}{f'{place}: ' if place else ''}{problem['message']}"
    fetch, estimate = plan["fetch"], plan["estimate"]
    if fetch["num_files"]:
        unknown = f", {fetch['num_of_unknown_size']} of unknown size" if fetch["num_of_unknown_size"] else ""
        room = "" if fetch["fits"] else f"; only {fetch['free_bytes'] / 1e9:.2f} GB are free"
        yield f"to fetch       {fetch['num_files']} files, {fetch['bytes'] / 1e9:.2f} GB{unknown}{room}"
    if estimate["load_units"] is not None:
        seconds = "" if estimate["run_seconds"] is None else f", about {estimate['run_seconds']:g} s"
        yield f"run            {estimate['load_units']:g} units of load{seconds}, wait {estimate['wait_seconds']:g} s"
    yield "it can run" if plan["can_run"] else "it cannot run as it is"


def run(file: Path, worker: ChosenWorker, api_key: str, *, is_json: bool) -> int:
    """Print the plan of the workflow in a file. Return the exit code: 1 if it cannot run, 2 without an answer."""
    try:
        workflow = find_workflow(file.read_bytes())
        with worker_client(api_key=api_key, timeout=60, verify=worker.verify) as http:
            response = http.post(f"{worker.url}/plan", json={"workflow_json": workflow})
    except (NoWorkflow, OSError) as error:
        return _fail(f"{file}: {error}")
    except httpx.TransportError as error:
        return _fail(worker.no_answer(error))
    answer = response.json()
    if response.status_code != 200:
        return _fail(f"{worker.url} refused: {response.status_code} {answer.get('message', '')}")
    if is_json:
        Console().print_json(data=answer)
    else:
        for line in plan_lines(answer):
            typer.echo(line)
    return 0 if answer["can_run"] else 1


def _fail(text: str) -> int:
    typer.echo(text, err=True)
    return 2

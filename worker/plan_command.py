"""Command `darkroom plan FILE`: what a workflow would need on a worker, as text or JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


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

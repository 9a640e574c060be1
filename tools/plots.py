"""Draws the plots of the documentation from `benchmark/results/`, as SVG files in `docs/images/`.

python -m tools.plots            # the files are rewritten
python -m tools.plots --check    # exit code 1 when one is out of date
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tools.svg_charts import Bars, Line, bar_chart, line_chart

ROOT: Final = Path(__file__).resolve().parent.parent
RESULTS: Final = ROOT / "benchmark" / "results"
IMAGES: Final = ROOT / "docs" / "images"
MIB: Final = 1 << 20
FAMILIES: Final = {"sd15": "Stable Diffusion 1.5", "sdxl": "layers of SDXL", "flux": "layers of Flux.1"}
POLICIES: Final = ("first free", "model first", "soonest", "balanced", "cheapest within 60 s")
ARRIVALS: Final = ("poisson", "daily", "bursts")


def read(name: str, results: Path = RESULTS) -> Any:
    return json.loads((results / f"{name}.json").read_text("utf-8"))


def speed() -> str:
    """Return the plot of a sampling step beside ComfyUI's, by family and type of numbers."""
    rows = {(row["family"], row["precision"]): row for row in read("comfyui_speed_bfloat16")["rows"]}
    groups = [
        Bars(f"{FAMILIES[family]}, {precision}", (row["darkroom_seconds"], row["comfyui_seconds"]))
        for (family, precision), row in rows.items()
    ]
    about = "Seconds, 256x256, 2 cores with AVX512, both programs in one run. Shorter is better."
    return bar_chart("A sampling step", about, ("Darkroom", "ComfyUI"), groups, "s")


def start() -> str:
    """Return the plot of the engine's start beside ComfyUI's."""
    found = read("engine_start")
    groups = [
        Bars(words, (found["ours"][key], found["comfyui"][key]))
        for key, words in (("first_answer_seconds", "first answer"), ("first_prompt_seconds", "first finished prompt"))
    ]
    about = "Seconds from the start of the process, 2 cores, medians of 3. Shorter is better."
    return bar_chart("Start of the engine", about, ("Darkroom", "ComfyUI"), groups, "s")


def node_cost() -> str:
    """Return the plot of what a trivial node costs, by the size of its graph."""
    rows = [row for row in read("node_cost")["rows"] if row["graph"] == "fan"]
    ways = dict.fromkeys(row["way"] for row in rows)
    lines = [
        Line(f"{way}, cold", [(row["nodes"], row["cold_us"]) for row in rows if row["way"] == way]) for way in ways
    ]
    cached = [(row["nodes"], row["cached_us"]) for row in rows if row["way"] == "engine"]
    about = "Microseconds a node of a graph in which all hang on one; flat is better."
    return line_chart("A trivial node", about, [*lines, Line("engine, cached", cached)], "nodes of the graph", "µs")


def quantised_memory() -> str:
    """Return the plot of the memory of one network in the forms of its file."""
    forms: Mapping[str, Any] = read("quantised_files")["forms"]
    groups = [
        Bars(name, (form["file_bytes"] / MIB, *(form["cards"][card]["loaded_bytes"] / MIB for card in form["cards"])))
        for name, form in forms.items()
    ]
    about = "MiB of 100 million weights: the file, on a card that holds it, on one that streams the rest."
    return bar_chart("Quantised files", about, ("file", "large card", "small card"), groups, "MiB")


def soak() -> str:
    """Return the plot of the front's memory under ten minutes of faults."""
    found = read("soak")
    points = [(10.0 * (index + 1), size) for index, size in enumerate(found["memory_mb_every_10_s"])]
    about = f"MB, {found['jobs']:,} jobs while engine, store, receiver and clients fail; flat is better."
    lines = [Line("front", points)]
    return line_chart("Memory of the front under faults", about, lines, "seconds", "MB", is_logarithmic=False)


def queue_growth() -> str:
    """Return the plot of requests to the job database, by the number of waiting jobs."""
    rows = read("queue_growth")["rows"]
    names = {"submit": "submit a job", "idle": "an idle worker's question", "page": "a page of the list"}
    lines = [Line(words, [(row["waiting"], row["ms"][key]) for row in rows]) for key, words in names.items()]
    about = "Milliseconds at the database of gateways, 2 cores; flat is better."
    return line_chart("A growing queue", about, lines, "waiting jobs", "ms")


def idle_workers() -> str:
    """Return the plot of commands at the broker, by the number of workers."""
    rows = read("idle_workers")["rows"]
    points = [(row["workers"], row["commands_a_job"]) for row in rows]
    about = "Commands at Redis for a job of one of 100 models; flat is better."
    return line_chart("Many idle workers", about, [Line("commands a job", points)], "workers", "")


def fleet_cost() -> str:
    """Return the plot of what a fleet costs, by its policy."""
    rows = {(row["arrivals"], row["policy"]): row["cost_per_1000"] for row in read("fleet")["rows"]}
    groups = [Bars(policy, [rows[arrivals, policy] for arrivals in ARRIVALS]) for policy in POLICIES]
    about = "Price of 1,000 jobs, simulated, 12,000 jobs on up to 1,000 workers. Shorter is better."
    return bar_chart("Policies of a fleet", about, ("steady arrivals", "a day's curve", "bursts"), groups, "")


PLOTS: Final[Mapping[str, Callable[[], str]]] = {
    "plot_speed": speed,
    "plot_start": start,
    "plot_node_cost": node_cost,
    "plot_quantised_memory": quantised_memory,
    "plot_soak": soak,
    "plot_queue_growth": queue_growth,
    "plot_idle_workers": idle_workers,
    "plot_fleet_cost": fleet_cost,
}


def main(arguments: Sequence[str] | None = None, images: Path = IMAGES) -> int:
    """Write the plots, or compare them with `--check`. Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    is_check = parser.parse_args(arguments).check
    old = []
    for name, draw in PLOTS.items():
        path, text = images / f"{name}.svg", draw()
        if not path.is_file() or path.read_text("utf-8") != text:
            old.append(path.name)
            if not is_check:
                path.write_text(text, "utf-8")
    if is_check and old:
        sys.stderr.write(f"out of date: {', '.join(old)}; run python -m tools.plots\n")
    return 1 if is_check and old else 0


if __name__ == "__main__":
    sys.exit(main())

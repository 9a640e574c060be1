"""Compare this version with the last release, in turns: a release that is 5 % slower or hungrier is not made.

    python -m benchmark.turns [--release REF] [--rounds 7] [--families sd15 sdxl flux] [--size 256] [--only steps …]

REF is a tag or another commit of git, by default the newest tag `v*`. It is cloned into a folder; both run by this
interpreter and its libraries. Each round measures both, in alternating order, so that other load on the machine meets
both. What is compared is the ratio of this version to the release in each round, turned so that above 1 is worse, and
the median of the ratios. Its noise is half the range between their quartiles. The parts:

    start          engine and worker, from the start of the process to the first answer, and to the first prompt's end
    node_cost      a node that does nothing, cold and cached
    generate_sync  `/generate/sync` on a trivial workflow, one and eight clients; memory of the front
    steps          a sampling step of each family, and the most memory that its engine held

A figure is `worse` where its median is more than 5 % and the noise above 1. It is `unclear` where that is within the
noise, or of fewer than three rounds: more rounds decide. The exit code is 1 where a figure is worse, 2 where nothing
could be compared. The result is printed and written to benchmark/results/turns.json. `--toy` proves in some minutes
that it runs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmark import engine_start, front_start
from benchmark.comfyui_speed import FAMILIES, Engine, checkpoint_prompt, measure_steps, prepare
from benchmark.goals import Find, at, row
from benchmark.machine import describe_cpu

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).parent / "results" / "turns.json"
ALLOWED = 1.05  # a figure may be 5 % worse than the release's
FEWEST_ROUNDS = 3  # of fewer the noise is not known
RELEASE, HERE = "release", "here"
PARTS = ("start", "node_cost", "generate_sync", "steps")
DEMO = "demo"  # the model that every checkout has, for toy runs
DEMO_FILE, DEMO_PX = "darkroom-emoji.safetensors", 128


@dataclass(frozen=True, slots=True)
class Size:
    """Amount of each that is measured."""

    rounds: int = 7
    families: tuple[str, ...] = FAMILIES
    side_px: int = 256
    num_nodes: int = 800
    requests: int = 400


@dataclass
class Figure:
    """Values of one quantity by version, a round after the other."""

    about: str
    unit: str
    is_rate: bool = False  # more is better
    values: dict[str, list[float]] = field(default_factory=lambda: {RELEASE: [], HERE: []})

    def ratios(self) -> list[float]:
        """Return the factor by which this version was worse in each round."""
        pairs = zip(self.values[RELEASE], self.values[HERE], strict=True)
        return [release / here if self.is_rate else here / release for release, here in pairs]


def judged(figure: Figure) -> dict[str, Any]:
    """Return a figure with its medians, its ratio, its noise and the verdict. Raises ValueError without a value."""
    ratios = figure.ratios()
    if not ratios:
        raise ValueError(f"{figure.about}: no round was measured")
    ratio, noise = statistics.median(ratios), spread(ratios)
    is_clear = len(ratios) >= FEWEST_ROUNDS and ratio > ALLOWED + noise
    verdict = "fine" if ratio <= ALLOWED else "worse" if is_clear else "unclear"
    return {
        "about": figure.about,
        "unit": figure.unit,
        RELEASE: round(statistics.median(figure.values[RELEASE]), 4),
        HERE: round(statistics.median(figure.values[HERE]), 4),
        "times_worse": round(ratio, 3),
        "noise": round(noise, 3),
        "verdict": verdict,
        "ratios": [round(value, 3) for value in ratios],
    }


def spread(ratios: Sequence[float]) -> float:
    """Return half the range between the quartiles; 0 of one value."""
    if len(ratios) < 2:
        return 0.0
    lower, _, upper = statistics.quantiles(ratios, n=4, method="inclusive")
    return (upper - lower) / 2


def in_turns(trees: Mapping[str, Path], rounds: int, measure: Callable[[str, Path], Mapping[str, float]]) -> Any:
    """Return the figures of `measure` by name and version, measured in an order that changes from round to round.

    One more round before them fills caches.
    """
    found: dict[str, dict[str, list[float]]] = {}
    for number in range(rounds + 1):
        for name in (RELEASE, HERE) if number % 2 else (HERE, RELEASE):
            for key, value in measure(name, trees[name]).items():
                if number:
                    found.setdefault(key, {RELEASE: [], HERE: []})[name].append(value)
    return found


def measured_start(trees: Mapping[str, Path], size: Size) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as bytecode:

        def once(name: str, tree: Path) -> dict[str, float]:
            answered, done = engine_start.start_once(
                (sys.executable, "-m", front_start.module_in(tree, "engine")), tree
            )
            front = front_start.start_once(tree, str(Path(bytecode, name)))
            return {
                "engine, from start to the first answer": answered,
                "engine, from start to the first prompt": done,
                "worker, from start to the first answer": front["first_answer_seconds"],
                "worker, from start to ready": front["ready_seconds"],
            }

        for about, values in in_turns(trees, size.rounds, once).items():
            yield Figure(about, "s", values=values)


def measured_node_cost(trees: Mapping[str, Path], size: Size) -> Iterator[Figure]:
    wanted = {
        "a trivial node, cold": row({"way": "engine", "graph": "fan"}, "cold_us"),
        "a trivial node, cached": row({"way": "engine", "graph": "fan"}, "cached_us"),
    }
    arguments = ("--repeats", "3", "--sizes", str(size.num_nodes))
    for about, values in in_turns(trees, size.rounds, by_script("node_cost", arguments, wanted)).items():
        yield Figure(about, "µs", values=values)


def measured_generate_sync(trees: Mapping[str, Path], size: Size) -> Iterator[Figure]:
    wanted = {
        "`/generate/sync`, one client": row({"clients": 1}, "p50_ms"),
        "`/generate/sync`, eight clients": row({"clients": 8}, "jobs_per_second"),
        "memory of the front after 100 jobs": at("front_mb_after_100_jobs"),
    }
    units = ("ms", "jobs/s", "MB")
    found = in_turns(trees, size.rounds, by_script("generate_sync", ("--requests", str(size.requests)), wanted))
    for (about, values), unit in zip(found.items(), units, strict=True):
        yield Figure(about, unit, unit == "jobs/s", values)


def measured_steps(trees: Mapping[str, Path], size: Size) -> Iterator[Figure]:
    """Both engines serve at the same time and compute one after the other; the first round loads the model."""
    for family in size.families:
        engines = {
            name: Engine(name, [sys.executable, "-m", front_start.module_in(tree, "engine")], tree, "float32")
            for name, tree in trees.items()
        }
        with tempfile.TemporaryDirectory() as folder:
            models = Path(folder, family)
            if family == DEMO:
                models.mkdir()
                make_prompt = checkpoint_prompt(DEMO_FILE, DEMO_PX)
            else:
                make_prompt = prepare(family, models, None, size.side_px)
            measure_steps(family, list(engines.values()), models, make_prompt, size.rounds)
        steps = {name: engine.step_seconds[family] for name, engine in engines.items()}
        yield Figure(f"a step of {family}", "s", values=steps)
        peaks = {name: engine.peak_memory_mb for name, engine in engines.items()}
        yield Figure(f"most memory of the engine with {family}", "MB", values=peaks)


MEASURED: Mapping[str, Callable[[Mapping[str, Path], Size], Iterator[Figure]]] = {
    "start": measured_start,
    "node_cost": measured_node_cost,
    "generate_sync": measured_generate_sync,
    "steps": measured_steps,
}


def by_script(
    part: str, arguments: Sequence[str], wanted: Mapping[str, Find]
) -> Callable[[str, Path], Mapping[str, float]]:
    """Return a function that runs a version's own benchmark and returns the figures of its report."""

    def once(name: str, tree: Path) -> dict[str, float]:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "report.json")
            command = [sys.executable, "-m", f"benchmark.{part}", *arguments, "--output", str(file)]
            done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
            if not file.is_file():
                raise RuntimeError(f"benchmark.{part} of {name}: exit code {done.returncode}: {done.stderr[-400:]}")
            report = json.loads(file.read_text("utf-8"))
        found = {about: find(report) for about, find in wanted.items()}
        return {about: value for about, value in found.items() if value is not None}

    return once


def newest_release() -> str:
    """Return the newest tag `v*` before the commit that is checked out. Raises LookupError without one."""
    done = _git("describe", "--tags", "--abbrev=0", "--match", "v*")
    if done.returncode:
        raise LookupError("no tag v* is there; name a commit with --release")
    return done.stdout.strip()


@contextmanager
def checked_out(ref: str) -> Iterator[tuple[Path, str]]:
    """Clone the repository at a commit; yield the folder and the commit's hash. Raises LookupError without it."""
    found = _git("rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")
    if found.returncode:
        raise LookupError(f"{ref}: no commit of this repository")
    commit = found.stdout.strip()
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "release")
        for arguments in (
            ("clone", "--quiet", "--shared", "--no-checkout", str(ROOT), str(tree)),
            ("-C", str(tree), "checkout", "--quiet", "--detach", commit),
        ):
            subprocess.run(["git", *arguments], check=True)
        yield tree, commit


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


def compare(trees: Mapping[str, Path], parts: Sequence[str], size: Size) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return the judged figures of the parts, and why a part has none."""
    figures: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    for part in parts:
        print(f"{part} ...", flush=True)
        try:
            figures += [judged(figure) for figure in MEASURED[part](trees, size)]
        except (RuntimeError, ValueError) as error:
            failed[part] = str(error)
    return figures, failed


def exit_code(figures: Sequence[Mapping[str, Any]], failed: Mapping[str, str]) -> int:
    """Return 1 where a figure is worse, 2 where a part could not be compared, else 0."""
    if any(figure["verdict"] == "worse" for figure in figures):
        return 1
    return 2 if failed or not figures else 0


def show(figures: Sequence[Mapping[str, Any]], failed: Mapping[str, str]) -> None:
    """Print the figures as a table."""
    table = Table("what", "release", "here", "times worse", "noise", "verdict", title="this version and the release")
    colours = {"fine": "green", "unclear": "yellow", "worse": "red"}
    for figure in figures:
        values = (f"{figure[name]:.4g} {figure['unit']}" for name in (RELEASE, HERE))
        shown = (figure["about"], *values, f"{figure['times_worse']:.3f}", f"{figure['noise']:.3f}", figure["verdict"])
        table.add_row(*shown, style=colours[figure["verdict"]])
    console = Console()
    console.print(table)
    for part, reason in failed.items():
        console.print(f"{part}: not compared: {reason}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--release", default=None, metavar="REF", help="the newest tag v* without it")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--families", nargs="+", choices=(*FAMILIES, DEMO), default=FAMILIES)
    parser.add_argument("--size", type=int, default=256, help="pixels a side of a step's image")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="parts to compare")
    parser.add_argument("--toy", action="store_true", help="as little of each as proves that it runs")
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args(arguments)
    size = Size(given.rounds, tuple(given.families), given.size)
    if given.toy:
        size = Size(1, (DEMO,), DEMO_PX, num_nodes=100, requests=20)
    try:
        ref = given.release or newest_release()
        with checked_out(ref) as (tree, commit):
            figures, failed = compare({RELEASE: tree, HERE: ROOT}, given.only, size)
    except LookupError as error:
        print(error, file=sys.stderr)
        return 2
    show(figures, failed)
    report = {
        "measured": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": describe_cpu(),
        "release": {"ref": ref, "commit": commit},
        "here": {
            "commit": _git("rev-parse", "HEAD").stdout.strip(),
            "is_changed": bool(_git("status", "--porcelain", "--untracked-files=no").stdout),
        },
        "rounds": size.rounds,
        "allowed": ALLOWED,
        "is_toy": given.toy,
        "figures": figures,
        "failed": failed,
    }
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return exit_code(figures, failed)


if __name__ == "__main__":
    sys.exit(main())

"""Writes the table of known packs of custom nodes, between the two marks of `docs/custom_nodes.md`.

python -m tools.packs_table                                # the page is rewritten from tools/packs_results.json
python -m tools.packs_table --check                        # exit code 1 when the table is out of date
python -m tools.packs_table --packs CUSTOM_NODES NAME …    # try these packs of a folder anew before (all: no NAME)

`--reference FILE` is `/object_info` of a ComfyUI with the same packs and Python packages. Each pack is tried as
`darkroom nodes check` does it, in a process that is forked off this one, which has imported what packs have in common.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from darkroom.engine.comfy.packs.discovery import Pack, find_packs
from darkroom.engine.comfy.packs.known_packs import KNOWN_PACKS
from darkroom.engine.comfy.packs.sync.manifest import PackEntry, read_packs
from darkroom.engine.comfy.packs.trial import end_session
from tools.marked_part import list_item, with_part

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "custom_nodes.md"
RESULTS = Path(__file__).with_name("packs_results.json")
BEGIN, END = "<!-- packs: tools/packs_table.py -->", "<!-- end of packs -->"
COMPARED = Path(__file__).with_name("packs_compared.json")
HEAD = (
    "| Pack | Commit | Nodes | In ComfyUI | Ran | Lacking | Not run | Agree | Workflows |",
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
)
OWN_FAULTS = ("differs: ", "fails here: ")  # beginnings of the verdicts of `tools.packs_compare` that are this engine's
PACK_SECONDS = 900.0
POLL_SECONDS = 0.2
SHARED_PACKAGES = ("torchvision", "transformers", "cv2", "scipy", "einops", "aiohttp", "skimage")
MODULE = "custom_nodes."
PATH = re.compile(r" \(/[^)]*\)")
MAX_NAMED = 4  # nodes with the same lack
MAX_REASON = 150  # characters of why a node or workflow differs


@dataclass(frozen=True, slots=True)
class PackResult:
    """Outcome of a pack: its nodes, those that ran, and why others did not.

    `failed` names what the engine lacks, by node; `reference` is the number of nodes that ComfyUI lists, None where it
    was not asked.
    """

    nodes: int = 0
    ran: int = 0
    untried: int = 0
    reference: int | None = None
    error: str | None = None
    missing: Sequence[str] = ()
    failed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PackCompared:
    """Verdicts of `tools.packs_compare` by node and by workflow, empty where both engines return the same."""

    nodes: Mapping[str, str] = field(default_factory=dict)
    workflows: Mapping[str, str] = field(default_factory=dict)

    def agreeing(self, verdicts: Mapping[str, str]) -> str:
        """Return how many agree of those that ComfyUI runs, `–` where none was compared."""
        ran = [why for why in verdicts.values() if not why or why.startswith(OWN_FAULTS)]
        return f"{sum(not why for why in ran)} of {len(ran)}" if verdicts else "–"

    def others(self) -> dict[str, str]:
        """Return the workflows that do not agree, and the nodes that do not for a reason of this engine's."""
        nodes = {name: why for name, why in self.nodes.items() if why.startswith(OWN_FAULTS)}
        return {**nodes, **{name: why for name, why in self.workflows.items() if why}}


def try_pack(pack: Pack, seconds: float) -> PackResult:
    """Import a pack and run its nodes in a child process."""
    with tempfile.TemporaryDirectory(prefix="packs-table-") as folder:
        report = Path(folder, "report.json")
        arguments = [str(pack.path), str(report), "--base-directory", folder, "--run-nodes"]
        child = multiprocessing.get_context("fork").Process(target=_trial, args=(arguments, Path(folder, "output")))
        child.start()
        assert child.pid is not None  # it has one from its start
        until = time.monotonic() + seconds
        while child.exitcode is None:  # `join` waits for the children that inherited its pipe, too
            if time.monotonic() > until:
                end_session(child.pid)
                child.kill()  # where it does not lead its session yet
            time.sleep(POLL_SECONDS)
        end_session(child.pid)  # what it has left behind
        if not report.is_file():
            return PackResult(error=f"its import ends the process or takes longer than {seconds:g} s")
        data = json.loads(report.read_text("utf-8"))
    failed = {name: _reason(why) for name, why in data["failed_nodes"].items()}
    tried = [name for name in data.get("tried", ()) if name not in failed]
    error = None if data["error"] is None else _reason(data["error"])
    untried = len(data.get("untried", ()))
    return PackResult(len(data["nodes"]), len(tried), untried, None, error, tuple(data["missing"]), failed)


def _reason(why: str) -> str:
    """Return the first line of an error, without paths of this machine."""
    return PATH.sub("", why.splitlines()[0])


def _try_all(packs: Sequence[Pack], results: dict[str, PackResult], num_parallel: int, seconds: float) -> None:
    """Try packs, and write the results after each."""
    for package in (*SHARED_PACKAGES, "darkroom.engine.pack_trial"):
        with suppress(ImportError):
            importlib.import_module(package)
    with ThreadPoolExecutor(num_parallel) as pool:
        trials = {pool.submit(try_pack, pack, seconds): pack for pack in packs}
        for trial in as_completed(trials):
            pack, result = trials[trial], trial.result()
            before = results.get(pack.name, PackResult())
            results[pack.name] = replace(result, reference=before.reference)
            sys.stderr.write(f"{pack.name}: {result.nodes} nodes, {result.ran} ran {result.error or ''}\n")
            write_results(results)


def _trial(arguments: list[str], output: Path) -> None:
    from darkroom.engine.pack_trial import main as trial

    os.setsid()  # as `darkroom nodes check` starts it
    with output.open("w") as sink:
        sys.stdout = sys.stderr = sink
        trial(arguments)


def num_listed(object_info: Mapping[str, Mapping[str, str]]) -> Counter[str]:
    """Count the nodes that a server lists of each pack."""
    modules = (node["python_module"] for node in object_info.values())
    return Counter(module.removeprefix(MODULE) for module in modules if module.startswith(MODULE))


def table(entries: Sequence[PackEntry], results: Mapping[str, PackResult], compared: Mapping[str, PackCompared]) -> str:
    """Return the table of packs that were tried, a list of what each lacks, and one of what differs."""
    tried = [entry for entry in entries if entry.name in results]
    rows = [_row(entry, results[entry.name], compared.get(entry.name, PackCompared())) for entry in tried]
    lacks = [_lack(entry.name, results[entry.name]) for entry in tried]
    others = [_unlike(entry.name, compared[entry.name].others()) for entry in tried if entry.name in compared]
    lists = [[list_item(text) for text in texts if text] for texts in (lacks, others)]
    heading = ["", "Nodes and workflows that do not return what they return in ComfyUI, or fail in both:", ""]
    return "\n".join([*HEAD, *rows, "", *lists[0], *(heading if lists[1] else ()), *lists[1]])


def _unlike(name: str, others: Mapping[str, str]) -> str:
    reasons = [f"`{item}` {_shortened(why)}" for item, why in others.items()]
    return f"{name}: {'; '.join(reasons)}." if reasons else ""


def _shortened(why: str) -> str:
    text = why.replace("|", "/").replace("`", "'").replace("<", "(").replace(">", ")")
    return text if len(text) <= MAX_REASON else f"{text[:MAX_REASON]}…"


def _row(entry: PackEntry, result: PackResult, compared: PackCompared) -> str:
    link = f"[{entry.name}]({entry.url})"
    reference = "–" if result.reference is None else result.reference
    lacking = "all" if result.error else len(result.failed)
    agreeing = compared.agreeing(compared.nodes), _num_agreeing(compared.workflows)
    tried = (result.nodes, reference, result.ran, lacking, result.untried)
    cells = (link, f"`{entry.revision[:7]}`", *tried, *agreeing)
    return f"| {' | '.join(map(str, cells))} |"


def _num_agreeing(workflows: Mapping[str, str]) -> str:
    return f"{sum(not why for why in workflows.values())} of {len(workflows)}" if workflows else "–"


def _lack(name: str, result: PackResult) -> str:
    if result.error:
        return f"{name} does not load: {result.error}."
    by_reason: dict[str, list[str]] = {}
    for node, why in result.failed.items():
        by_reason.setdefault(why.removeprefix(f"{name} uses ").removesuffix("."), []).append(node)
    reasons = [f"{_named(nodes)}: {why}" for why, nodes in by_reason.items()]
    return f"{name}: {'; '.join(reasons)}." if reasons else ""


def _named(nodes: Sequence[str]) -> str:
    shown = ", ".join(f"`{node}`" for node in nodes[:MAX_NAMED])
    return shown + (f" and {len(nodes) - MAX_NAMED} more" if nodes[MAX_NAMED:] else "")


def read_results() -> dict[str, PackResult]:
    if not RESULTS.is_file():
        return {}
    return {name: PackResult(**item) for name, item in json.loads(RESULTS.read_text("utf-8")).items()}


def read_compared() -> dict[str, PackCompared]:
    if not COMPARED.is_file():
        return {}
    return {name: PackCompared(**item) for name, item in json.loads(COMPARED.read_text("utf-8")).items()}


def write_results(results: Mapping[str, PackResult]) -> None:
    data = {name: asdict(results[name]) for name in sorted(results, key=str.lower)}
    RESULTS.write_text(json.dumps(data, indent=1) + "\n", "utf-8")


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--packs", type=Path, help="a folder of packs that are tried anew")
    parser.add_argument("--reference", type=Path, help="a file with ComfyUI's /object_info")
    parser.add_argument("--seconds", type=float, default=PACK_SECONDS, help="the longest that a pack may take")
    parser.add_argument("--parallel", type=int, default=1, help="packs tried at a time")
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args(given)
    entries, results = read_packs(KNOWN_PACKS), read_results()
    if arguments.packs is not None:
        names = set(arguments.names) or {entry.name for entry in entries}
        wanted = [pack for pack in find_packs([arguments.packs.resolve()]) if pack.name in names]
        _try_all(wanted, results, arguments.parallel, arguments.seconds)
    if arguments.reference is not None:
        listed = num_listed(json.loads(arguments.reference.read_text("utf-8")))
        results = {name: replace(item, reference=listed[name]) for name, item in results.items()}
        write_results(results)
    old_page = PAGE.read_text("utf-8")
    page = with_part(old_page, table(entries, results, read_compared()), BEGIN, END)
    if arguments.check:
        return int(page != old_page)
    PAGE.write_text(page, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Runs nodes and workflows of known packs on this engine and on ComfyUI, and compares all that their nodes return.

Both servers have the same `custom_nodes/` (with `tools/packs_recorder` in it), `models/` and `input/`, and an output
folder each. Small models and inputs are those of `tests.parity.models` and `tests/parity/inputs`, and `sounding.mp4`, a
second of any video with sound.

    python -m tools.packs_compare --ours URL OUTPUT --reference URL OUTPUT [--nodes] [--examples CUSTOM_NODES] [PACK …]

Workflows are those of `tools/packs_workflows/PACK.json`, in API format, and with `--examples` those that lie in a
pack's own folder: converted as the worker does it, with small models and sizes in place of theirs. `--nodes` runs each
node once, with made-up inputs. Results go to `tools/packs_compared.json`, which `tools.packs_table` reads.

A recorder is linked to every output of a pack's node that has a value which can be written; a MODEL is sampled with, a
CLIP encodes, a VAE decodes. Floats agree within `RELATIVE` of their size, all else exactly. Where they differ, ComfyUI
runs the same again: what it does not repeat itself is no difference.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from darkroom.engine.comfy.packs.known_packs import KNOWN_PACKS
from darkroom.engine.comfy.packs.sync.manifest import read_packs
from darkroom.worker.errors import RequestRejected
from darkroom.worker.prompts.workflows.media import NoWorkflow, find_workflow
from darkroom.worker.prompts.workflows.page_graph import is_page_format
from darkroom.worker.prompts.workflows.to_prompt import to_prompt
from tools.packs_inputs import NotMakeable, Sources, shrink

HERE = Path(__file__).resolve().parent
WORKFLOWS = HERE / "packs_workflows"
RESULTS = HERE / "packs_compared.json"
RECORDER, FOLDER = "DarkroomRecordValue", "packs_compare"
MODULE = "custom_nodes."
RELATIVE = 2e-5
RUN_SECONDS = 60.0
POLL_SECONDS = 0.03
STOP_SECONDS = 2.0  # in which an interrupted node ends, where it does
NUM_EXAMPLES = 12  # of a pack that are tried
MAX_PROBED = 7  # outputs of a node; with more of them, models among these are only recorded as there
MAX_REASON = 160  # characters
SLOW = ("Compile", "Deepseek", "TensorRT")  # parts of names of nodes that are not run: they compile for minutes
ENDLESS = frozenset({"Text Find and Replace Input"})  # loops without an end where what it finds is in what it puts
# What follows a value that cannot be written: a node, its input, and the other inputs by a source's type.
PROBES: Mapping[str, tuple[str, str, Mapping[str, Any], int]] = {
    "MODEL": (
        "KSampler", "model",
        {"positive": "CONDITIONING", "negative": "CONDITIONING", "latent_image": "LATENT", "seed": 3, "steps": 2,
         "cfg": 3.0, "sampler_name": "euler", "scheduler": "normal", "denoise": 1.0}, 0,
    ),
    "CLIP": ("CLIPTextEncode", "clip", {"text": "a (red:1.2) fox"}, 0),
    "VAE": ("VAEDecode", "vae", {"samples": "LATENT"}, 0),
    "SAMPLER": (
        "SamplerCustom", "sampler",
        {"model": "MODEL", "add_noise": True, "noise_seed": 3, "cfg": 3.0, "positive": "CONDITIONING",
         "negative": "CONDITIONING", "sigmas": "SIGMAS", "latent_image": "LATENT"}, 0,
    ),
    "GUIDER": (
        "SamplerCustomAdvanced", "guider",
        {"noise": "NOISE", "sampler": "SAMPLER", "sigmas": "SIGMAS", "latent_image": "LATENT"}, 0,
    ),
    "NOISE": (
        "SamplerCustomAdvanced", "noise",
        {"guider": "GUIDER", "sampler": "SAMPLER", "sigmas": "SIGMAS", "latent_image": "LATENT"}, 0,
    ),
    "CONTROL_NET": (
        "ControlNetApplyAdvanced", "control_net",
        {"positive": "CONDITIONING", "negative": "CONDITIONING", "image": "IMAGE", "strength": 0.8,
         "start_percent": 0.0, "end_percent": 1.0}, 0,
    ),
}  # fmt: skip

Prompt = dict[str, dict[str, Any]]
Values = Mapping[str, Any]


class RunFailed(Exception):
    """A server refused a prompt, or a node raised."""


class ServerBusy(Exception):
    """A server still runs an earlier prompt, of which a node neither ends nor stops."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a run: recorded values by recorder and path, or the reason why it failed."""

    values: Mapping[str, Values] = field(default_factory=dict)
    error: str = ""


class Server:
    """One of the two servers, and the folder that it writes outputs to."""

    def __init__(self, url: str, output: Path) -> None:
        self._http = httpx.Client(base_url=url.rstrip("/"), timeout=300, trust_env=False)
        self._folder = output / FOLDER

    def object_info(self) -> dict[str, Any]:
        found: dict[str, Any] = self._http.get("/object_info").raise_for_status().json()
        return found

    def forget(self) -> None:
        """Drop the results that the server keeps, so that the next prompt is computed anew."""
        self._http.post("/free", json={"unload_models": False, "free_memory": True})
        time.sleep(0.3)  # the reference does so in its own time

    def run(self, prompt: Prompt, names: Sequence[str]) -> Outcome:
        """Run a prompt; return what its recorders wrote under these names. Raises ServerBusy."""
        if self._http.get("/queue").json()["queue_running"]:
            raise ServerBusy(f"{self._http.base_url} has to be started anew: it still runs an earlier prompt")
        for name in names:
            (self._folder / f"{name}.npz").unlink(missing_ok=True)
        try:
            self._run(prompt)
        except RunFailed as failed:
            return Outcome(self._recorded(names), str(failed) or "failed")
        return Outcome(self._recorded(names))

    def _run(self, prompt: Prompt) -> None:
        queued = self._http.post("/prompt", json={"prompt": prompt, "client_id": "packs_compare"})
        if queued.status_code != 200:
            raise RunFailed(f"refused: {_refusal(queued)}")
        answer = queued.json()
        if answer.get("node_errors"):
            raise RunFailed(f"refused in part: {_node_errors(answer['node_errors'])}")
        until = time.monotonic() + RUN_SECONDS
        while True:
            entry = self._http.get(f"/history/{answer['prompt_id']}").json().get(answer["prompt_id"])
            if entry:
                break
            if time.monotonic() > until:
                self._http.post("/interrupt")
                time.sleep(STOP_SECONDS)
                raise RunFailed(f"takes longer than {RUN_SECONDS:g} s")
            time.sleep(POLL_SECONDS)
        status = entry.get("status") or {}
        if status.get("status_str") != "success":
            raise RunFailed("; ".join(_raised(status)))

    def _recorded(self, names: Sequence[str]) -> dict[str, Values]:
        return {name: read_values(path) for name in names if (path := self._folder / f"{name}.npz").is_file()}


def _raised(status: Mapping[str, Any]) -> Iterator[str]:
    for kind, message in status.get("messages", ()):
        if kind == "execution_error":
            exception = str(message.get("exception_type", "")).rpartition(".")[2]
            yield f"{message.get('node_type')}: {exception}: {str(message.get('exception_message', '')).strip()}"


def _refusal(answer: httpx.Response) -> str:
    try:
        data = answer.json()
    except ValueError:
        return f"HTTP {answer.status_code}"
    return _node_errors(data.get("node_errors") or {}) or str(data.get("error", ""))[:300]


def _node_errors(errors: Mapping[str, Any]) -> str:
    return "; ".join(
        f"{item.get('class_type')}: {error.get('message')}: {error.get('details')}"
        for item in errors.values()
        for error in item.get("errors", ())
    )


def read_values(path: Path) -> Values:
    """Return the arrays and plain values of a recorder's file by their paths."""
    with np.load(path) as file:
        arrays = {name.removeprefix("array:"): file[name] for name in file.files if name != "plain"}
        return {**json.loads(file["plain"].tobytes()), **arrays}


def difference(ours: Values, theirs: Values, *, is_exact: bool = False) -> str:
    """Return how values differ from the reference's, empty where they agree."""
    only = sorted(ours.keys() ^ theirs.keys())
    if only:
        where = "here" if only[0] in ours else "there"
        return f"{only[0] or 'value'} is {where} alone"
    for path, wanted in theirs.items():
        found = ours[path]
        if isinstance(wanted, np.ndarray) != isinstance(found, np.ndarray):
            return f"{path or 'value'} is a {type(found).__name__}, not {type(wanted).__name__}"
        if not isinstance(wanted, np.ndarray):
            if found != wanted and not (_is_close(found, wanted) and not is_exact):
                return f"{path or 'value'} is {str(found)[:40]!r}, not {str(wanted)[:40]!r}"
        elif found.shape != wanted.shape:
            return f"{path or 'value'} has shape {list(found.shape)}, not {list(wanted.shape)}"
        else:
            relative = relative_difference(found, wanted)
            if relative > (0.0 if is_exact or wanted.dtype.kind not in "fc" else RELATIVE):
                return f"{path or 'value'} differs by {relative:.2g}"
    return ""


def _is_close(found: object, wanted: object) -> bool:
    if not (isinstance(found, float) and isinstance(wanted, float)):
        return False
    return bool(np.isclose(found, wanted, rtol=RELATIVE, atol=0, equal_nan=True))


def relative_difference(found: Any, wanted: Any) -> float:
    """Return the size of the difference by that of `wanted`; inf where one alone is no number."""
    if wanted.dtype.kind in "US" or wanted.size == 0:
        return 0.0 if np.array_equal(found, wanted) else float("inf")
    one, other = found.astype(np.float64), wanted.astype(np.float64)
    if not np.array_equal(np.isfinite(one), np.isfinite(other)):
        return float("inf")
    one, other = np.nan_to_num(one), np.nan_to_num(other)
    size = float(np.linalg.norm(other))
    return float(np.linalg.norm(one - other)) / (size or 1.0)


@dataclass(slots=True)
class Comparison:
    """Both servers, and what each says of its nodes."""

    ours: Server
    reference: Server
    info: Mapping[str, Any]
    our_info: Mapping[str, Any]

    def nodes_of(self, pack: str) -> list[str]:
        """Return the nodes of a pack that ComfyUI lists."""
        return sorted(name for name, node in self.info.items() if node["python_module"] == MODULE + pack)

    def recorded(self, prompt: Prompt, pack: str) -> tuple[Prompt, dict[str, bool]]:
        """Return the prompt with recorders of outputs, and their names; True where values must be the very same.

        Recorded are the outputs of the pack's nodes, or of every node where none is of the pack.
        """
        own = set(self.nodes_of(pack))
        chosen = [key for key, node in prompt.items() if node["class_type"] in own] or list(prompt)
        made: Prompt = {
            key: {"class_type": node["class_type"], "inputs": dict(node["inputs"])} for key, node in prompt.items()
        }
        sources = Sources(self.info, made, [])
        names: dict[str, bool] = {}
        for key in chosen:
            node = self.info[prompt[key]["class_type"]]
            for slot, kind in enumerate(node["output"]):
                is_pipe = len(node["output"]) > MAX_PROBED  # most of whose outputs have no value
                link, shown = ([key, slot], kind) if is_pipe else self._probed(sources, [key, slot], kind)
                name = re.sub(r"\W", "_", f"{key}-{slot}")
                made[f"record-{name}"] = {"class_type": RECORDER, "inputs": {"value": link, "name": name}}
                names[name] = shown in ("MASK", "STRING", "INT", "BOOLEAN")
        return made, names

    def _probed(self, sources: Sources, link: list[Any], kind: Any) -> tuple[list[Any], Any]:
        if not isinstance(kind, str) or kind not in PROBES:
            return link, kind
        class_type, own, inputs, output = PROBES[kind]
        given = {name: sources.link(value) if str(value).isupper() else value for name, value in inputs.items()}
        key = f"probe-{link[0]}-{link[1]}"
        sources.prompt[key] = {"class_type": class_type, "inputs": {**given, own: link}}
        if kind == "CONTROL_NET":
            return self._probed_control(sources, key)
        return [key, output], self.info[class_type]["output"][output]

    def _probed_control(self, sources: Sources, key: str) -> tuple[list[Any], Any]:
        _, own, inputs, output = PROBES["MODEL"]
        given = {name: sources.link(value) if str(value).isupper() else value for name, value in inputs.items()}
        given.update(model=sources.link("MODEL"), positive=[key, 0], negative=[key, 1])
        sources.prompt[f"{key}-sampled"] = {"class_type": "KSampler", "inputs": given}
        return [f"{key}-sampled", output], "LATENT"

    def compare(self, prompt: Prompt, pack: str) -> str:
        """Run a prompt on both; return how they differ: empty, or a reason that begins with its kind."""
        try:
            recorded, names = self.recorded(prompt, pack)
        except NotMakeable as reason:
            return f"not run: {reason}"
        except KeyError as missing:
            return f"not run: ComfyUI lists no {missing}"
        try:
            theirs = self.reference.run(recorded, list(names))
            ours = self.ours.run(recorded, list(names))
        except ServerBusy as busy:
            return f"not run: {busy}"
        found = verdict(ours, theirs, names)
        if found.startswith("differs"):
            self.reference.forget()
            unsteady = unlike(self.reference.run(recorded, list(names)), theirs, names)
            without = Outcome({name: _without(values, unsteady, name) for name, values in theirs.values.items()})
            ours = Outcome({name: _without(values, unsteady, name) for name, values in ours.values.items()}, ours.error)
            found = verdict(ours, without, names)
            if not found and not any(without.values.values()):
                return "random: ComfyUI does not repeat it"
        return found


def unlike(one: Outcome, other: Outcome, names: Mapping[str, bool]) -> set[tuple[str, str]]:
    """Return recorders and paths of values that two runs do not have alike."""
    found = set()
    for name, is_exact in names.items():
        first, second = one.values.get(name, {}), other.values.get(name, {})
        for path in first.keys() | second.keys():
            pair = [{path: values[path]} if path in values else {} for values in (first, second)]
            if difference(*pair, is_exact=is_exact):
                found.add((name, path))
    return found


def _without(values: Values, unsteady: set[tuple[str, str]], name: str) -> Values:
    return {path: value for path, value in values.items() if (name, path) not in unsteady}


def verdict(ours: Outcome, theirs: Outcome, names: Mapping[str, bool]) -> str:
    """Return how two runs differ: empty where both recorded every name, with the same values."""
    for name, is_exact in names.items():
        if name in ours.values and name in theirs.values:
            found = difference(ours.values[name], theirs.values[name], is_exact=is_exact)
            if found:
                return _short(f"differs: {name}: {found}")
    if theirs.error and ours.error:
        return _short(f"fails alike: {theirs.error}" if _same(ours.error, theirs.error) else
                      f"fails in both: here {ours.error}; there {theirs.error}")  # fmt: skip
    if theirs.error:
        return _short(f"fails there: {theirs.error}")
    if ours.error:
        return _short(f"fails here: {ours.error}")
    if ours.values.keys() != theirs.values.keys():
        return f"differs: recorded here {len(ours.values)}, there {len(theirs.values)}"
    if not theirs.values:
        return "no output"
    unseen = [name for name in names if name not in theirs.values]
    return _short(f"not recorded: {', '.join(unseen)}") if unseen else ""


def _same(one: str, other: str) -> bool:
    """Return True for messages that are equal but for numbers and paths."""
    plain = [re.sub(r"(/[\w./-]+|0x[0-9a-f]+|\s+|[\d.]+)", " ", text)[:120] for text in (one, other)]
    return plain[0] == plain[1]


def _short(text: str) -> str:
    line = " ".join(re.sub(r"/(?:tmp|work|home|root|usr)/[\w./+-]+/", "…/", text).split())
    return line if len(line) <= 2 * MAX_REASON else line[: 2 * MAX_REASON] + "…"


def node_prompt(info: Mapping[str, Any], pack_nodes: Sequence[str], class_type: str) -> Prompt:
    """Return a prompt that runs one node with made-up inputs. Raises NotMakeable."""
    prompt: Prompt = {}
    inputs = Sources(info, prompt, pack_nodes).inputs(class_type)
    return {**prompt, "tried": {"class_type": class_type, "inputs": inputs}}


def example_prompts(pack: Path, info: Mapping[str, Any]) -> Iterator[tuple[str, Prompt | str]]:
    """Yield the workflows in a pack's folder by name, converted and made small, or the reason why one cannot be."""
    for path in sorted(pack.rglob("*")):
        if path.suffix not in (".json", ".png") or not path.is_file() or path.stat().st_size > 16 << 20:
            continue
        content = path.read_bytes()
        if path.suffix == ".png" and b"workflow" not in content:
            continue
        try:
            workflow: Any = json.loads(content) if path.suffix == ".json" else find_workflow(content)
        except (ValueError, NoWorkflow, RequestRejected):
            continue
        if not isinstance(workflow, dict):
            continue
        name = str(path.relative_to(pack))
        if is_page_format(workflow):
            try:
                prompt = to_prompt(workflow, dict(info), lambda n: 0)
            except RequestRejected as refused:
                yield name, "; ".join(problem.message for problem in refused.problems)
                continue
        elif workflow and all(isinstance(node, dict) and "class_type" in node for node in workflow.values()):
            prompt = workflow
        else:
            continue
        lacking = sorted({node["class_type"] for node in prompt.values()} - info.keys())
        yield name, f"needs {', '.join(lacking[:4])}" if lacking else shrink(prompt, info)


def own_prompts(pack: str) -> Iterator[tuple[str, Prompt]]:
    path = WORKFLOWS / f"{pack}.json"
    if path.is_file():
        yield from json.loads(path.read_text("utf-8")).items()


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ours", nargs=2, required=True, metavar=("URL", "OUTPUT"))
    parser.add_argument("--reference", nargs=2, required=True, metavar=("URL", "OUTPUT"))
    parser.add_argument("--nodes", action="store_true", help="run each node of the packs once")
    parser.add_argument("--failed", action="store_true", help="of the nodes, those that did not agree before")
    parser.add_argument("--only", default="", help="a part of the names of nodes or workflows that are run")
    parser.add_argument("--examples", type=Path, help="the folder with the packs, for workflows in theirs")
    parser.add_argument("--no-workflows", action="store_true")
    parser.add_argument("packs", nargs="*")
    arguments = parser.parse_args(given)
    ours, reference = (Server(url, Path(folder)) for url, folder in (arguments.ours, arguments.reference))
    comparison = Comparison(ours, reference, reference.object_info(), ours.object_info())
    results = json.loads(RESULTS.read_text("utf-8")) if RESULTS.is_file() else {}
    for pack in arguments.packs or [entry.name for entry in read_packs(KNOWN_PACKS)]:
        if not comparison.nodes_of(pack):
            sys.stderr.write(f"{pack}: ComfyUI lists no node\n")
            continue
        result = results.setdefault(pack, {"nodes": {}, "workflows": {}})
        if arguments.nodes:
            _compare_nodes(comparison, pack, arguments, result["nodes"])
        if not arguments.no_workflows:
            _compare_workflows(comparison, pack, arguments, result["workflows"])
        ordered = {name: results[name] for name in sorted(results, key=str.lower)}
        RESULTS.write_text(json.dumps(ordered, indent=1, sort_keys=False) + "\n", "utf-8")
    return 0


def _compare_nodes(comparison: Comparison, pack: str, arguments: Any, found: dict[str, str]) -> None:
    names = comparison.nodes_of(pack)
    for name in (name for name in names if arguments.only in name):
        if arguments.failed and found.get(name) == "":
            continue
        try:
            prompt = node_prompt(comparison.info, names, name)
        except NotMakeable as reason:
            found[name] = f"not run: {reason}"
            continue
        if any(part in name for part in SLOW):
            found[name] = "not run: it compiles for minutes"
        elif name in ENDLESS:
            found[name] = "not run: it does not end with made-up inputs, in ComfyUI either"
        elif name not in comparison.our_info:
            found[name] = "fails here: it is not offered"
        else:
            found[name] = comparison.compare(prompt, pack)
        if found[name]:
            sys.stderr.write(f"{pack}: {name}: {found[name]}\n")
    good = sum(not why for why in found.values())
    sys.stderr.write(f"== {pack}: {good} of {len(found)} nodes agree\n")


def _compare_workflows(comparison: Comparison, pack: str, arguments: Any, found: dict[str, str]) -> None:
    every: list[tuple[str, Prompt | str]] = [*own_prompts(pack)]
    if arguments.examples is not None:
        every += list(example_prompts(arguments.examples / pack, comparison.info))[:NUM_EXAMPLES]
    for name, prompt in every:
        if arguments.only in name:
            found[name] = (
                f"not run: {prompt}"[:MAX_REASON] if isinstance(prompt, str) else comparison.compare(prompt, pack)
            )
            sys.stderr.write(f"{pack}: {name}: {found[name] or 'agrees'}\n")


if __name__ == "__main__":
    sys.exit(main())

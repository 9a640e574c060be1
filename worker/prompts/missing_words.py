"""Words of refusals for files that are not here: size, source and command, or the ways to send them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from darkroom.contract.graph.prompt_graph import PromptGraph
from darkroom.contract.nearest import nearest_names
from darkroom.worker.engines.choices import NOT_IN_LIST
from darkroom.worker.errors import Problem, RequestRejected
from darkroom.worker.inputs.references import media_of
from darkroom.worker.json.values import object_at
from darkroom.worker.models.manifest import Manifest
from darkroom.worker.models.sources import FileSource
from darkroom.worker.prompts.model_needs import MissingModel, ModelNeeds

FETCH: Final = "darkroom models fetch"
MAX_NEAREST: Final = 3
MAX_COMMAND_NAMES: Final = 20
COMPLAINT: Final = "Custom validation failed for node: "
COMPLAINED: Final = "custom_validation_failed"


@dataclass(frozen=True, slots=True)
class MissingInput:
    """An image, video or audio file that a node names and that is still to be sent. `media` is `image` or `file`."""

    node_id: str
    class_type: str
    field: str
    name: str
    media: str

    @property
    def ways(self) -> tuple[str, ...]:
        """The ways to send it, as the value of the input or of an override."""
        return (
            "a URL as the input's value",
            "base64 or a data URI as the input's value",
            f"a part `{self.field}=@FILE` of a form, named in an override",
            f"`{self.class_type}.{self.field}=@FILE` of `darkroom generate`",
        )

    @property
    def words(self) -> str:
        thing = "image" if self.media == "image" else "file"
        return (
            f"{self.field}: the {thing} {self.name!r} is not here; send it as a URL, as base64 or a data URI, as part "
            f"of a form, or with `{self.class_type}.{self.field}=@FILE` of `darkroom generate`"
        )

    def as_json(self) -> dict[str, object]:
        return {
            "node_id": self.node_id,
            "class_type": self.class_type,
            "field": self.field,
            "name": self.name,
            "media": self.media,
            "ways": list(self.ways),
        }


def missing_inputs(problems: Iterable[Problem], graph: PromptGraph) -> dict[tuple[str, str], MissingInput]:
    """Return the files still to be sent, by node and input."""
    found = {}
    for problem in problems:
        node_id, name = problem.node_id or "", problem.field or ""
        node = object_at(graph.prompt, node_id)
        value, class_type = object_at(node, "inputs").get(name), str(node.get("class_type"))
        if not isinstance(value, str) or not _is_missing(problem, value):
            continue
        media = media_of(graph.object_info, graph.facts, class_type, name)
        if media is not None:
            found[node_id, name] = MissingInput(node_id, class_type, name, value, str(media))
    return found


def _is_missing(problem: Problem, name: str) -> bool:
    """Return True if a file is not in the folder of inputs.

    A node complains of a missing file by its name alone, and adds the reason for one that cannot be read.
    """
    return problem.type == NOT_IN_LIST or (problem.type == COMPLAINED and problem.message.endswith(name))


def explained(rejected: RequestRejected, graph: PromptGraph, needs: ModelNeeds, manifest: Manifest) -> RequestRejected:
    """Return a refusal whose problems of missing files say what to do, with a summary of its model files."""
    inputs = missing_inputs(rejected.problems, graph)
    models = {(item.model.node_id, item.model.field): item for item in needs.missing}
    problems, lacking = [], []
    for problem in rejected.problems:
        place = problem.node_id or "", problem.field or ""
        item = models.get(place)
        if problem.type == NOT_IN_LIST and item is not None and place not in inputs:
            lacking.append(item)
            problems.append(_of_model(problem, item, manifest))
        elif place in inputs:
            problems.append(
                replace(problem, message=inputs[place].words, extra=_with(problem, inputs[place].as_json()))
            )
        else:
            problems.append(_plainly(problem))
    summary = models_summary(lacking, manifest, {item.name for item in needs.named})
    others = len(problems) + rejected.num_unlisted - len(lacking)
    more = f" (and {others} other problem{'s' if others > 1 else ''})" if others else ""
    return RequestRejected(problems, summary + more if summary else None, rejected.num_unlisted)


def models_summary(missing: Sequence[MissingModel], manifest: Manifest, named: Collection[str]) -> str:
    """Return a sentence on missing model files: how many, their bytes, the command that brings them; empty for none.

    `named` are the names of all files of the workflow: a set that has others is none of its own.
    """
    first: dict[tuple[str, ...], MissingModel] = {}
    for item in missing:
        first.setdefault((*item.model.kinds, item.model.name), item)
    files = list(first.values())
    if not files:
        return ""
    sizes = [item.entry.size_bytes for item in files if item.entry is not None]
    known = sum(size for size in sizes if size is not None)
    num_unknown = len(files) - sum(size is not None for size in sizes)
    size = f", {_gb(known)}" if known else ""
    unknown = f"{' and' if size else ','} {num_unknown} of unknown size" if num_unknown and len(files) > 1 else ""
    command = fetch_command(files, manifest, named)
    what = "1 model file is missing" if len(files) == 1 else f"{len(files)} model files are missing"
    shown = "" if len(files) > 1 else f" ({files[0].model.name})"
    unsourced = [item.model.name for item in files if item.entry is None]
    elsewhere = sum(item.entry is not None and not item.is_operators for item in files)
    if not command:
        words = (
            "no source is known" if unsourced else "FETCH_MISSING=any lets a job fetch from the workflow's addresses"
        )
        return f"{what}{shown}{size}{unknown}: {words}"
    rest = f"; FETCH_MISSING=any brings {elsewhere} more from the workflow's addresses" if elsewhere else ""
    rest += f"; of {', '.join(unsourced[:MAX_NEAREST])} no source is known" if unsourced else ""
    return f"{what}{shown}{size}{unknown}: `{command}`, or FETCH_MISSING=manifest{rest}"


def fetch_command(missing: Sequence[MissingModel], manifest: Manifest, named: Collection[str] = ()) -> str:
    """Return the command that fetches files of the manifest, by a set that has all and no others; empty for none.

    `named` are the names of all files of the workflow.
    """
    ids = list(dict.fromkeys(item.entry.id for item in missing if item.entry is not None and item.is_operators))
    ids = [name for name in ids if name in manifest.entries]
    if not ids:
        return ""
    sets = [
        (len(item.files), name)
        for name, item in manifest.sets.items()
        if set(ids) <= set(item.files) and all(manifest.entries[file].name in named for file in item.files)
    ]
    names = [min(sets)[1]] if sets and len(ids) > 1 else ids[:MAX_COMMAND_NAMES]
    return f"{FETCH} {' '.join(names)}"


def _of_model(problem: Problem, item: MissingModel, manifest: Manifest) -> Problem:
    """Return the problem of a model file that is missing, with what is known of it."""
    model, entry = item.model, item.entry
    folder = entry.kind if entry is not None else next(iter(model.kinds), "")
    searched = (problem.extra or {}).get("searched")
    known: dict[str, Any] = {"name": model.name, "folder": folder}
    where = f"; searched in {', '.join(searched)}" if isinstance(searched, list) else ""
    if entry is None:
        nearest = (
            nearest_names(model.name, problem.allowed, limit=MAX_NEAREST) if isinstance(problem.allowed, list) else ()
        )
        near = f"; near it: {', '.join(nearest)}" if nearest else ""
        message = f"{model.field}: {model.name!r} is not here, and no source of it is known{where}{near}"
        return replace(problem, message=message, extra=_with(problem, {**known, "nearest": list(nearest)}))
    first, command = entry.sources[0], fetch_command([item], manifest)
    source = "a shared volume" if isinstance(first, FileSource) else str(first)
    size = _gb(entry.size_bytes) if entry.size_bytes else "of unknown size"
    remedy = f"`{command}`, or FETCH_MISSING=manifest" if command else "FETCH_MISSING=any"
    message = f"{model.field}: {model.name!r} is not here{where}: {size} from {source}: {remedy}"
    known |= {"size_bytes": entry.size_bytes, "source": source, "command": command or None}
    return replace(problem, message=message, extra=_with(problem, known))


def _plainly(problem: Problem) -> Problem:
    """Return the complaint of a node about an input without ComfyUI's words around it."""
    words = problem.message.removeprefix(COMPLAINT)
    is_complaint = words != problem.message and words.startswith(f"{problem.field} - ")
    return replace(problem, message=words.replace(" - ", ": ", 1)) if is_complaint else problem


def _with(problem: Problem, more: Mapping[str, Any]) -> dict[str, Any]:
    return {**(problem.extra or {}), **more}


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:.0f} MB"

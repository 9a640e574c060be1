"""Folders in which an engine looks for a model, added to the problem of a model that is not there. Pure.

The kind of folder of an input's files is what `contract/graph/model_inputs.py` reads or guesses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath

from darkroom.contract.graph.facts import Facts
from darkroom.contract.graph.model_inputs import ModelInputs
from darkroom.worker.engines.choices import NOT_IN_LIST
from darkroom.worker.errors import Problem

MODELS = "models"

SAME_FILES: Mapping[str, tuple[str, ...]] = {
    "diffusion_models": ("diffusion_models", "unet"),
    "text_encoders": ("text_encoders", "clip"),
    "unet_gguf": ("diffusion_models", "unet"),
    "vae": ("vae", "vae_approx"),
}
"""Kinds whose loaders look into several folders."""

Kinds = Mapping[tuple[str, str], str]
"""Node id and input -> kind of folder."""


def parse_kinds(models: object) -> Kinds:
    """Parse the list `models` in the reply of our engine's check; empty without one."""
    entries = [entry for entry in models if isinstance(entry, Mapping)] if isinstance(models, list) else []
    return {(str(entry.get("node_id")), str(entry.get("input_name"))): str(entry.get("folder")) for entry in entries}


def parse_folders(body: object) -> dict[str, list[str]]:
    """Parse the folders by kind in ComfyUI's `/experiment/models`; empty where the engine has no such route."""
    entries = [entry for entry in body if isinstance(entry, Mapping)] if isinstance(body, list) else []
    return {str(entry.get("name")): _texts(entry.get("folders")) for entry in entries}


def _texts(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else []


def kinds_of_input(model_inputs: ModelInputs, class_type: str, input_name: str) -> tuple[str, ...]:
    """Return the folders below `models/` of the files that an input names; empty where they are not known.

    >>> found = ModelInputs(Facts())
    >>> kinds_of_input(found, "Loader", "unet_name"), kinds_of_input(found, "Loader", "seed")
    (('diffusion_models', 'unet'), ())
    """
    kind = model_inputs.folders_of(class_type).get(input_name)
    if kind is None and input_name.startswith("lora_name"):  # of nodes that take several
        kind = "loras"
    return () if kind is None else SAME_FILES.get(kind, (kind,))


def is_missing_model(problem: Problem, kinds: Kinds) -> bool:
    return problem.type == NOT_IN_LIST and _kind_of(problem, kinds) is not None


def with_folders(problems: Iterable[Problem], kinds: Kinds, folders: Mapping[str, Sequence[str]]) -> list[Problem]:
    """Return the problems, with the folders searched added to those of a missing model."""
    return [_with_folders(problem, folders.get(_kind_of(problem, kinds) or "", ())) for problem in problems]


def _with_folders(problem: Problem, searched: Sequence[str]) -> Problem:
    if problem.type != NOT_IN_LIST or not searched:
        return problem
    shown = list(dict.fromkeys(map(shown_folder, searched)))
    message = f"{problem.message.rstrip('.')}; searched in {', '.join(shown)}"
    return replace(problem, message=message, extra={**(problem.extra or {}), "searched": shown})


def shown_folder(folder: str) -> str:
    """Return a folder of models without the place of the installation: from `models` on, else its last part.

    >>> shown_folder("/srv/ComfyUI/models/checkpoints"), shown_folder("/mnt/disk/sd/loras")
    ('models/checkpoints', 'loras')
    """
    parts = PurePath(folder.replace("\\", "/")).parts
    start = max((index for index, part in enumerate(parts) if part == MODELS), default=len(parts) - 1)
    return "/".join(parts[max(start, 0) :])


def _kind_of(problem: Problem, kinds: Kinds) -> str | None:
    kind = kinds.get((problem.node_id or "", problem.field or ""))
    if kind is not None or kinds:
        return kind
    return ModelInputs(Facts()).folders_of(problem.class_type or "").get(problem.field or "")

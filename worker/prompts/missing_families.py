"""Families of model files that are not here: by the manifest, else by their names. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final

from darkroom.contract.graph.prompt_graph import ModelFile
from darkroom.worker.engines.families import Family
from darkroom.worker.prompts.model_needs import MissingModel, ModelNeeds

OLDER_KINDS: Final[Mapping[str, str]] = {"unet": "diffusion_models"}
BILLIONS: Final = re.compile(r"(?<![\d.])(\d{1,3}(?:\.\d{1,2})?)b(?![a-z\d])")
BYTES_OF_A_WEIGHT: Final = (
    (re.compile(r"nf4|fp4|int4|svdq|q[234]_"), 0.56),
    (re.compile(r"q[56]_"), 0.75),
    (re.compile(r"fp8|e4m3|e5m2|int8|q8_"), 1.0),
    (re.compile(r"fp32|float32"), 4.0),
)
"""Bytes of a weight by parts of a file's name; without one of them they are those of half precision."""
HALF_BYTES: Final = 2.0


def families_of_missing(
    files: Collection[ModelFile], needs: ModelNeeds, families: Sequence[Family]
) -> dict[ModelFile, Family]:
    """Return the families of those of the files that are missing, with the work of a network of their size.

    A file is left out whose family neither the manifest nor its name tells.
    """
    missing = {(kind, item.model.name): item for item in needs.missing for kind in _kinds_of(item)}
    found = {}
    for file in files:
        item = missing.get((file.kind, file.name))
        family = None if item is None else _family_of(item, families)
        if item is not None and family is not None:
            found[file] = family.of_size(_num_weights(item, file, family))
    return found


def named_family(name: str, families: Sequence[Family]) -> Family | None:
    """Return the family that the name of a file tells, by the longest of the families' words that is in it.

    None for a name without such a word, and for one of a network that no family has.
    """
    plain = re.sub(r"[^a-z0-9]", "", PurePosixPath(name).name.lower())
    words = [(len(word), word, family) for family in families for word in family.file_words if word in plain]
    if not words:
        return None
    length, _, family = max(words, key=lambda item: item[:2])
    others = (word for item in families for word in item.other_file_words if word in plain)
    return None if any(len(word) > length for word in others) else family


def _kinds_of(item: MissingModel) -> list[str]:
    kinds = (*item.model.kinds, *(() if item.entry is None else (item.entry.kind,)))
    return [OLDER_KINDS.get(kind, kind) for kind in kinds]


def _family_of(item: MissingModel, families: Sequence[Family]) -> Family | None:
    known = () if item.entry is None else item.entry.families
    by_manifest = next((family for family in families if family.name in known[:1]), None)
    return by_manifest or named_family(item.model.name, families)


def _num_weights(item: MissingModel, file: ModelFile, family: Family) -> float | None:
    """Return the number of weights by a file's name or its size; None for the family's full network.

    A whole checkpoint's size says little: it has text encoders as well.
    """
    name = PurePosixPath(item.model.name).name.lower()
    plain = re.sub(r"[^a-z0-9]", "", name)
    named = next((billions for word, billions in family.file_billions.items() if word in plain), None)
    if named is None and (found := BILLIONS.search(name.replace("_", " "))):
        named = float(found.group(1))
    if named is not None:
        return named * 1e9
    size_bytes = None if item.entry is None else item.entry.size_bytes
    if size_bytes is None or file.kind != "diffusion_models":
        return None
    item_bytes = next((size for pattern, size in BYTES_OF_A_WEIGHT if pattern.search(name)), HALF_BYTES)
    return size_bytes / item_bytes

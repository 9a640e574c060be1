"""Choice of the model files that are read before a worker is ready. Pure.

`family:NAME` in PRELOAD_MODELS is every file of the manifest of that family that is on disk, `recent:3` the three
downloaded files that jobs of the last week named most often. Other names are left as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from darkroom.worker.models.entry import ModelEntry
from darkroom.worker.models.eviction import FileUse

FAMILY = "family:"
RECENT = "recent:"
WEEK_SECONDS = 7 * 86400.0
READ_KINDS = frozenset(
    {"checkpoints", "diffusion_models", "text_encoders", "vae", "controlnet", "upscale_models", "clip_vision"}
)
"""Folders whose files a worker can read before a job names them."""


def preload_names(
    names: Iterable[str],
    entries: Collection[ModelEntry],
    there: Collection[str],
    uses: Collection[FileUse],
    now_seconds: float,
) -> list[str]:
    """Return places of files, each once, for names of PRELOAD_MODELS. `there` are the places of files on disk."""
    found: dict[str, None] = {}
    for name in names:
        if name.startswith(FAMILY):
            chosen = _of_family(name.removeprefix(FAMILY), entries, there)
            found.update(dict.fromkeys(chosen) or {name: None})  # a family without a file is reported under its name
        elif name.startswith(RECENT):
            found.update(dict.fromkeys(_used_most(int(name.removeprefix(RECENT)), uses, now_seconds)))
        else:
            found[name] = None
    return list(found)


def _of_family(family: str, entries: Collection[ModelEntry], there: Collection[str]) -> Iterator[str]:
    return (
        entry.place
        for entry in entries
        if family in entry.families and entry.kind in READ_KINDS and entry.place in there
    )


def _used_most(num_files: int, uses: Collection[FileUse], now_seconds: float) -> list[str]:
    recent = [
        use
        for use in uses
        if now_seconds - use.used_at_seconds <= WEEK_SECONDS and use.place.partition("/")[0] in READ_KINDS
    ]
    return [use.place for use in sorted(recent, key=lambda use: (-use.num_uses, -use.used_at_seconds))[:num_files]]

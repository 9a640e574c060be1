"""ModelEntry: one file of a manifest, its place below `models/` and where it can come from. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from darkroom.worker.models.sources import Source

FILE_EXTENSIONS = frozenset(
    {".safetensors", ".sft", ".ckpt", ".pt", ".pt2", ".pth", ".bin", ".gguf", ".pkl", ".onnx", ".json", ".yaml", ".txt"}
)
MAX_NAME_LENGTH = 240
_PART = re.compile(r"[^\x00-\x1f\x7f\\/:*?\"<>|]+")
_KIND = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model file. `kind` is the folder below `models/`, `name` the path below it, as loaders name it.

    `sources` are tried in order. Without `sha256` the first download learns it. An `is_optional` file is fetched when
    it is asked for by name or by a job, and not with the manifest. `about_bytes` is shown where the exact size is not
    known, and nothing is compared with it.
    """

    id: str
    label: str
    kind: str
    name: str
    sources: tuple[Source, ...]
    size_bytes: int | None = None
    sha256: str | None = None
    licence: str = ""
    families: tuple[str, ...] = field(default=())
    is_optional: bool = False
    about_bytes: int | None = None

    @property
    def likely_bytes(self) -> int | None:
        """The size, else about that; None where neither is known."""
        return self.size_bytes or self.about_bytes

    @property
    def place(self) -> str:
        """The path below `models/`."""
        return f"{self.kind}/{self.name}"

    def path_below(self, models_directory: Path) -> Path:
        return models_directory / self.kind / self.name


def find_name_problem(name: str) -> str | None:
    """Return the fault of a file's name below the folder of its kind, or None."""
    parts = name.split("/")
    is_plain = all(_PART.fullmatch(part) and not part.startswith(".") and part == part.strip() for part in parts)
    if not is_plain or len(name) > MAX_NAME_LENGTH:
        return f"is not a path below the folder of its kind; got {name[:MAX_NAME_LENGTH]!r}"
    extension = Path(name).suffix.lower()
    if extension not in FILE_EXTENSIONS:
        return f"is no model file; got {extension!r}, expected one of {', '.join(sorted(FILE_EXTENSIONS))}"
    return None


def find_kind_problem(kind: str) -> str | None:
    """Return the fault of a kind, the name of a folder below `models/`, or None."""
    if _KIND.fullmatch(kind):
        return None
    return f"is not a folder below models/; got {kind[:80]!r}, expected checkpoints, loras, vae or another name"

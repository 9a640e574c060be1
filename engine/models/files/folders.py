"""Model files that exist, by kind (`checkpoints`, `vae`, ...) and name (path below a folder of the kind, `/` between).

A ComfyUI base directory is taken as it stands: `models/<kind>/`, and further folders from `extra_model_paths.yaml`.
What ships with the engine itself (`engine/weights/<kind>/`) comes last: the user's file of the same name wins.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from darkroom.engine.formats.arriving_file import find_part

WEIGHT_ENDINGS = (".ckpt", ".pt", ".pt2", ".bin", ".pth", ".safetensors", ".pkl", ".sft")

# Kind -> its folders below `models/`. The first is the one new files go to.
KINDS: Mapping[str, tuple[str, ...]] = {
    "checkpoints": ("checkpoints",),
    "configs": ("configs",),
    "loras": ("loras",),
    "vae": ("vae",),
    "text_encoders": ("text_encoders", "clip"),
    "diffusion_models": ("unet", "diffusion_models"),
    "clip_vision": ("clip_vision",),
    "style_models": ("style_models",),
    "embeddings": ("embeddings",),
    "diffusers": ("diffusers",),
    "vae_approx": ("vae_approx",),
    "controlnet": ("controlnet", "t2i_adapter"),
    "gligen": ("gligen",),
    "upscale_models": ("upscale_models",),
    "latent_upscale_models": ("latent_upscale_models",),
    "hypernetworks": ("hypernetworks",),
    "photomaker": ("photomaker",),
    "classifiers": ("classifiers",),
    "model_patches": ("model_patches",),
    "audio_encoders": ("audio_encoders",),
    "background_removal": ("background_removal",),
    "frame_interpolation": ("frame_interpolation",),
    "geometry_estimation": ("geometry_estimation",),
    "optical_flow": ("optical_flow",),
    "detection": ("detection",),
}
LEGACY_KINDS: Mapping[str, str] = {"unet": "diffusion_models", "clip": "text_encoders"}
# Kinds of files in the folders of another kind, by their own endings; ComfyUI-GGUF's names.
SHARED_FOLDERS: Mapping[str, str] = {"unet_gguf": "diffusion_models", "clip_gguf": "text_encoders"}
ENDINGS: Mapping[str, tuple[str, ...]] = {"configs": (".yaml",), "classifiers": ("",), "diffusers": ("folder",),
                                         "unet_gguf": (".gguf",), "clip_gguf": (".gguf",)}  # fmt: skip
FOLDER_ENDING = ENDINGS["diffusers"]  # models of this kind are folders, known by the file below
FOLDER_MARK = "model_index.json"


# What ships with the engine, by kind.
BUILT_IN: Mapping[str, Path] = {"checkpoints": Path(__file__).resolve().parents[2] / "weights" / "checkpoints"}
# Kind -> the folder below the output folder where the nodes that save models put them, and find them again.
SAVED_IN: Mapping[str, str] = {
    "checkpoints": "checkpoints", "text_encoders": "clip", "vae": "vae", "diffusion_models": "diffusion_models",
    "loras": "loras",
}  # fmt: skip


class ModelFolders:
    """The folders of each kind and what lies in them. Listings are kept until a folder's time of change moves.

    `built_in` folders are looked at after all others, and what only they have is listed last.
    """

    def __init__(
        self,
        models_directory: Path,
        extra: Mapping[str, Iterable[Path]] | None = None,
        built_in: Mapping[str, Path] | None = None,
    ) -> None:
        self.models_directory = models_directory
        self._built_in = dict(built_in or {})
        self._endings: dict[str, tuple[str, ...]] = dict(ENDINGS)
        self._roots: dict[str, list[Path]] = {
            kind: [models_directory / name for name in names] for kind, names in KINDS.items()
        }
        for kind, paths in (extra or {}).items():
            for path in paths:
                self.add_folder(kind, path)
        self._listings: dict[str, tuple[dict[str, float], list[str]]] = {}

    def kinds(self) -> list[str]:
        return list(self._roots)

    def add_folder(self, kind: str, path: Path, *, is_default: bool = False) -> None:
        """Add a folder to a kind; a default one comes first. A kind that is new accepts every file."""
        kind = LEGACY_KINDS.get(kind, kind)
        if kind not in self._roots:
            self._endings.setdefault(kind, ("",))
        roots = self._roots.setdefault(kind, [])
        if path in roots:
            roots.remove(path)
        roots.insert(0 if is_default else len(roots), path)

    def set_roots(self, kind: str, paths: Iterable[Path]) -> None:
        """Other folders for a kind, which may be new."""
        kind = LEGACY_KINDS.get(kind, kind)
        self._roots[kind] = list(dict.fromkeys(paths))
        self._listings.pop(kind, None)

    def endings(self, kind: str) -> tuple[str, ...]:
        """Return the file extensions of a kind, in lower case."""
        return self._endings.get(LEGACY_KINDS.get(kind, kind), WEIGHT_ENDINGS)

    def set_endings(self, kind: str, endings: Iterable[str]) -> None:
        """Other endings for a kind; none let every file pass."""
        kind = LEGACY_KINDS.get(kind, kind)
        self._endings[kind] = tuple(ending.lower() for ending in endings) or ("",)
        self._listings.pop(kind, None)

    def forget(self, kind: str) -> None:
        """Take a kind away. Raises KeyError for an unknown one."""
        kind = LEGACY_KINDS.get(kind, kind)
        del self._roots[kind]
        self._listings.pop(kind, None)

    def roots(self, kind: str) -> list[Path]:
        """Return the folders of a kind, a built-in one last. Raises KeyError for an unknown kind."""
        kind = LEGACY_KINDS.get(kind, kind)
        if kind not in self._roots:
            kind = SHARED_FOLDERS.get(kind, kind)
        built_in = self._built_in.get(kind)
        return self._roots[kind] + ([] if built_in is None or built_in in self._roots[kind] else [built_in])

    def is_built_in(self, path: Path) -> bool:
        """Return True if the file came with the engine. It may lie on another disk than the user's models."""
        return any(path.is_relative_to(folder) for folder in self._built_in.values())

    def names(self, kind: str) -> list[str]:
        """Return the files of a kind, sorted, each name once, built-in ones last.

        Raises KeyError for an unknown kind.
        """
        kind = LEGACY_KINDS.get(kind, kind)
        roots = self.roots(kind)
        known = self._listings.get(kind)
        if known is not None and known[0].keys() >= {str(root) for root in roots if root.is_dir()}:
            stamps, names = known
            if all(_stamp(folder) == stamp for folder, stamp in stamps.items()):
                return list(names)
        stamps = {}
        found: dict[str, bool] = {}  # name -> whether only the engine itself has it
        for root in roots:
            for name in _files_below(root, self.endings(kind), stamps):
                found.setdefault(name, root == self._built_in.get(kind))
        names = sorted(found, key=lambda name: (found[name], name))
        self._listings[kind] = (stamps, names)
        return list(names)

    def folder(self, kind: str, name: str) -> Path | None:
        """Return the path of a model that is a folder, or None. A name never leads out of the folder."""
        for root in self.roots(kind):
            path = Path(os.path.normpath(root / name))
            if path.is_relative_to(root) and (path / FOLDER_MARK).is_file():
                return path
        return None

    def path(self, kind: str, name: str) -> Path | None:
        """Return the path of a file, or None if no folder of the kind has it. A name never leads out of the folder."""
        for root in self.roots(kind):
            path = Path(os.path.normpath(root / name))
            if path.is_relative_to(root) and path.is_file():
                return path
        return None

    def arriving_path(self, kind: str, name: str) -> Path | None:
        """Return the path that a file will have whose download is under way, or None."""
        for root in self.roots(kind):
            path = Path(os.path.normpath(root / name))
            if path.is_relative_to(root) and find_part(path) is not None:
                return path
        return None


def _stamp(folder: str) -> float:
    try:
        return os.stat(folder).st_mtime
    except OSError:
        return -1.0


def _files_below(root: Path, endings: tuple[str, ...], stamps: dict[str, float]) -> Iterator[str]:
    """Files with these endings, linked folders included; `stamps` gets the time of change of every folder seen."""
    if not root.is_dir():
        return
    for folder, folders, files in os.walk(root, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        stamps[folder] = _stamp(folder)
        if endings == FOLDER_ENDING and FOLDER_MARK in files:
            yield os.path.relpath(folder, root).replace(os.sep, "/")
        for name in files:
            if name.lower().endswith(endings):
                yield os.path.relpath(os.path.join(folder, name), root).replace(os.sep, "/")

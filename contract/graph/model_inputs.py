"""Inputs of nodes that name model files, and the folder of each: as declared, else a guess. Pure.

What a class declares (`NodeFacts.models`) counts. A class that declares nothing, as one of most node packs in an engine
that is not ours, has its folders guessed: an input offers the files of a folder if its choices are exactly those that
a declared input of the folder offers, and else by its name, as ComfyUI's loaders name theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from darkroom.contract.graph.facts import Facts, NodeFacts

GUESSED_FOLDERS: Final[Mapping[str, str]] = {
    "clip_name": "text_encoders",
    "clip_name1": "text_encoders",
    "clip_name2": "text_encoders",
    "clip_name3": "text_encoders",
    "clip_name4": "text_encoders",
    "ckpt_name": "checkpoints",
    "unet_name": "diffusion_models",
    "vae_name": "vae",
    "lora_name": "loras",
    "control_net_name": "controlnet",
    "photomaker_model_name": "photomaker",
    "audio_encoder_name": "audio_encoders",
    "style_model_name": "style_models",
    "gligen_name": "gligen",
    "hypernetwork_name": "hypernetworks",
}
"""Folders by the name of the input, for classes that declare none: a guess."""

NETWORK_FOLDERS: Final[Mapping[str, str]] = {
    "checkpoints": "checkpoints",
    "diffusion_models": "diffusion_models",
    "unet_gguf": "diffusion_models",
}
"""Folders with files of denoising networks, and the kind of which an engine is asked for the families of its files."""


SECTIONS: Final = ("required", "optional")


def folders_by_input(facts: NodeFacts) -> Mapping[str, str]:
    """Return the folders that a class declares, by input; guessed by the names of inputs where it declares none."""
    return facts.models or GUESSED_FOLDERS


class ModelInputs:
    """Folders of the model files that inputs name, by the facts and the choices of one engine's node classes."""

    def __init__(self, facts: Facts, object_info: Mapping[str, object] | None = None) -> None:
        self._facts = facts
        self._object_info = object_info or {}
        self._folders: dict[str, Mapping[str, str]] = {}
        self._by_choices: Mapping[tuple[str, ...], str] | None = None

    def folders_of(self, class_type: str) -> Mapping[str, str]:
        """Return the folder below `models/` by the input that names a file there; guessed where none is declared."""
        if class_type not in self._folders:
            declared = self._facts.of(class_type).models
            self._folders[class_type] = declared or {**GUESSED_FOLDERS, **self._guessed(class_type)}
        return self._folders[class_type]

    def _guessed(self, class_type: str) -> dict[str, str]:
        """Return the folders of those inputs of a class that offer the same files as a declared one."""
        offered = list(self._files_offered(class_type))
        if not offered:
            return {}
        if self._by_choices is None:
            self._by_choices = self._folders_by_choices()
        return {name: folder for name, files in offered if (folder := self._by_choices.get(files, ""))}

    def _folders_by_choices(self) -> dict[tuple[str, ...], str]:
        """Return the folder of each list of files that declared inputs offer, empty for a list of several folders."""
        found: dict[tuple[str, ...], str] = {}
        for class_type in self._object_info:
            folders = self._facts.of(class_type).models
            for name, files in self._files_offered(class_type) if folders else ():
                if name in folders:
                    found[files] = folders[name] if found.get(files, folders[name]) == folders[name] else ""
        return found

    def _files_offered(self, class_type: str) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield the inputs of a class that offer names of files, with these names."""
        declared = self._object_info.get(class_type)
        sections = declared.get("input") if isinstance(declared, Mapping) else None
        for section in SECTIONS:
            inputs = sections.get(section) if isinstance(sections, Mapping) else None
            for name, config in inputs.items() if isinstance(inputs, Mapping) else ():
                files = _choices_in(config)
                if files and all(isinstance(item, str) and "." in item for item in files):
                    yield str(name), tuple(map(str, files))


def _choices_in(config: object) -> Sequence[object]:
    """Return the choices of an input in either of ComfyUI's notations; none for any other input."""
    parts = config if isinstance(config, list | tuple) else ()
    kind, options = parts[0] if parts else None, parts[1] if len(parts) > 1 else None
    if kind == "COMBO" and isinstance(options, Mapping):
        kind = options.get("options")
    return kind if isinstance(kind, list | tuple) else ()

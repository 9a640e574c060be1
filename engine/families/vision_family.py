"""`VisionFamily`: a model that detects or segments what is in images, in files that the loaders of MODEL take.

It is no `ModelFamily`: its network denoises nothing. A family's folder has its `FAMILY` in `vision.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from darkroom.engine.adapters.lora_names import LoraTarget, denoiser_keys, encoder_set_keys
from darkroom.engine.families.base import Network, Shapes, Tensors, TextEncoder
from darkroom.engine.formats.weight_file import Names
from darkroom.engine.settings import DtypePolicies
from darkroom.engine.text.chunk_encoding import Encoded
from darkroom.engine.text.clip_encoding import only_encoder


@dataclass(frozen=True, slots=True)
class VisionFamily:
    """A model that reads images. `name` is for APIs, `label` for people.

    `detect` returns the names of the network's weights in a file, None for another file; `variant_of` the label of the
    variant that a file of these shapes has. `text` are the text encoders in its checkpoints.
    """

    name: str
    label: str
    detect: Callable[[Shapes], Names | None]
    network: Network
    variant_of: Callable[[Shapes], str]
    text: tuple[TextEncoder, ...] = ()
    combine_text: Callable[[Mapping[str, Encoded]], Encoded] = only_encoder

    @property
    def dtypes(self) -> DtypePolicies:
        """The types in which its network computes."""
        return DtypePolicies(unet=self.network.dtypes)

    def text_lora_keys(self, weight_names: Iterable[str]) -> dict[str, str]:
        """Return a map from the names used in LoRA files to the weights of all text encoders."""
        names = list(weight_names)
        own = {key: name for encoder in self.text for key, name in encoder.lora_keys(names).items()}
        return {**encoder_set_keys(names), **own}

    def network_lora_keys(self, weight_names: Iterable[str], config: Any) -> dict[str, LoraTarget]:
        """Return a map from the names used in LoRA files to the weights of the network."""
        return {**denoiser_keys(weight_names, {})}

    def renamed_lora(self, tensors: Tensors, config: Any) -> Tensors:
        """Return the tensors of a LoRA file as they are: there are no other conventions."""
        return tensors

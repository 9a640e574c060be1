"""`ModelFamily`: description of a family of models, as data and pure functions.

A family is one folder next to this file, whose `family.py` has a `FAMILY`. The folder has the family's networks under
the model's public name; they are made of what networks share (`engine/layers`). With them come encodings of prompts
(`engine/text`, `engine/families/text`), parameterisations and latent formats (`engine/diffusion`). A family may import
another one's modules along its `lineage`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

import torch
from torch import nn

from darkroom.engine.adapters.lora_names import LoraTarget, denoiser_keys, encoder_set_keys
from darkroom.engine.diffusion.denoiser import Denoiser
from darkroom.engine.diffusion.latent_format import LatentFormat
from darkroom.engine.formats.weight_file import Names
from darkroom.engine.layers.image_encoders import ImageEncoderConfig
from darkroom.engine.settings import DtypePolicies, DtypePolicy
from darkroom.engine.text.chunk_encoding import Encoded
from darkroom.engine.text.chunk_tokens import FindEmbedding
from darkroom.engine.text.clip_encoding import ClipEncoder, ClipEncoding, only_encoder
from darkroom.engine.text.clip_tokens import BytePairs, ClipTokenizer

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]
Tensors = Mapping[str, torch.Tensor]
Layout = Callable[[Shapes], Names | None]  # shapes of a file -> its names for a network; None: other layout


class NotRecognised(Exception):
    """Tensors that are not those of a network the engine has; `found` describes them."""

    def __init__(self, found: str) -> None:
        super().__init__(found)
        self.found = found


@dataclass(frozen=True, slots=True)
class TensorIndex:
    """The names and shapes of a file's tensors, and its metadata."""

    shapes: Shapes
    metadata: Mapping[str, str] = field(default_factory=dict)


class TensorReader(Protocol):
    """A file whose tensors can be read (`engine/formats/weight_file.py::WeightFile`)."""

    metadata: dict[str, str]

    @property
    def shapes(self) -> dict[str, Shape]: ...

    def tensor(self, name: str) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True)
class Match:
    """A file's tensors as those of a family's denoising network.

    Of several families that match, the one with the highest `specificity` is taken; equal ones are an error of the
    families. `names` gives the network's weights in the file, `variant` is one of the family's `variants`.
    """

    specificity: int
    names: Names
    variant: str = ""


@dataclass(frozen=True, slots=True)
class Parameterisation:
    """The reading of the network's output: a class of `engine/diffusion/model_sampling.py` and its settings.

    `latent_format` is that of a network trained on other latents than its family.
    """

    kind: Callable[[Any], Any]
    settings: Mapping[str, Any] = field(default_factory=dict)
    latent_format: type[LatentFormat] | None = None


def _under_own_names(tensors: Tensors) -> Tensors:
    return tensors


def _as_named(tensors: Tensors, config: Any) -> Tensors:
    return tensors


def _as_configured(config: Any, metadata: Mapping[str, str]) -> Any:
    return config


def _no_description(config: Any) -> dict[str, dict[str, Any]]:
    return {}


@dataclass(frozen=True, slots=True)
class Network:
    """A network of a family: where files have its weights, how it is configured and built.

    `layouts` are those of files that hold the network alone or among others, `in_checkpoint` those of a whole
    checkpoint, each tried in order. `configure` reads the configuration from the shapes under the network's own names;
    it raises `NotRecognised`, or LookupError for a missing tensor. `defaults` makes weights that files may leave out,
    by name, from their shape. `float32_ends` are the ends of names of weights that stay float32 whatever the
    others' type; one that begins with a dot ends whole parts of a name. `float32_ends_of` gives them where they depend
    on the configuration. `saved` gives weights the names they have
    in a checkpoint of the family. Where shapes do not tell everything, `as_described` returns the configuration as
    a file's metadata have it, and `description` the metadata of a saved one, which are stored as JSON. `sizes` are
    configurations for random weights, by the name of the size: `full` is the published network.
    """

    layouts: tuple[Layout, ...]
    in_checkpoint: tuple[Layout, ...]
    configure: Callable[[Shapes], Any]
    build: Callable[[Any], nn.Module]
    saved: Callable[[Tensors], Tensors] = _under_own_names
    dtypes: DtypePolicy = DtypePolicy()
    defaults: Mapping[str, Callable[[Shape], torch.Tensor]] = field(default_factory=dict)
    float32_ends: tuple[str, ...] = ()
    float32_ends_of: Callable[[Any], tuple[str, ...]] | None = None
    as_described: Callable[[Any, Mapping[str, str]], Any] = _as_configured
    description: Callable[[Any], dict[str, dict[str, Any]]] = _no_description
    sizes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TokenizerParts:
    """Parts of tokenizers. `find_embedding` makes the finder of the textual inversions for an encoder."""

    pairs: BytePairs
    find_embedding: Callable[[Any], FindEmbedding]


def _clip_tokenizer(encoder: Any, parts: TokenizerParts) -> ClipTokenizer:
    encoding: ClipEncoding = encoder.encoding
    find = parts.find_embedding(encoding)
    return ClipTokenizer(find, slot=encoding.slot, pad_token=encoding.pad_token, pairs=parts.pairs)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The serialised tokenizer in files of a text encoder, a tensor of bytes.

    `names` are those of the tensor, in files of the encoder alone and in others, `in_checkpoint` that in a checkpoint.
    `random` makes one for random weights. The encoder gets it as its `vocabulary`. `beside` is the name of a file with
    it in the folder of a file that has no such tensor, None where there is none.
    """

    names: tuple[str, ...]
    in_checkpoint: str
    random: Callable[[], bytes]
    beside: str | None = None


@dataclass(frozen=True, slots=True)
class TextEncoder:
    """One of the text encoders of a family.

    `encoding` has `slot`, `key` (the name of its module in the set) and `embedding_width`. `fits` tells a file of this
    encoder from files of others by the shapes under the network's names. `lora_keys` maps the names used in LoRA files
    to the weights of the encoder set. `encoder_type` makes the encoder of chunks of tokens from the filled network and
    the encoding, `tokenizer` the tokenizer for such an encoder. `vocabulary` is set where files hold the tokenizer's,
    `second_vocabulary` where they may hold one for texts beside the prompt: the encoder's `second_vocabulary`, or None.
    """

    encoding: Any
    network: Network
    fits: Callable[[Shapes], bool]
    lora_keys: Callable[[Iterable[str]], dict[str, str]]
    encoder_type: Callable[[Any, Any], Any] = ClipEncoder
    vocabulary: Vocabulary | None = None
    second_vocabulary: Vocabulary | None = None
    tokenizer: Callable[[Any, TokenizerParts], Any] = _clip_tokenizer


@dataclass(frozen=True, slots=True)
class ControlModels:
    """The ControlNets that steer a family: `fits` and `configure` take the shapes of the half of its network.

    GLIGEN files for it have tokens of `token_width`, and attention heads as its network has.
    """

    fits: Callable[[Shapes], bool]
    configure: Callable[[Shapes], Any]
    token_width: int
    heads: Callable[[int], int]


def _same_image(image: torch.Tensor) -> torch.Tensor:
    return image


@dataclass(frozen=True, slots=True)
class ControlReading:
    """The inputs of a ControlNet.

    With a `latent_format` it reads the image as a latent of that format, else pixels, after `prepare`; with
    `takes_mask` a mask as well. `inputs` are inputs of the steered network that it gets too, `borrowed` (prefix of
    names) weights of that network with which it computes.
    """

    latent_format: LatentFormat | None = None
    takes_mask: bool = False
    inputs: tuple[str, ...] = ("y",)
    prepare: Callable[[torch.Tensor], torch.Tensor] = _same_image
    borrowed: str | None = None


@dataclass(frozen=True, slots=True)
class ControlNetwork:
    """A kind of ControlNet with a network of its own, not the half of a UNet.

    `reading` takes the configuration and the file. `steers` returns True where a network of the first configuration
    fits a steered network of the second.
    """

    network: Network
    reading: Callable[[Any, TensorReader], ControlReading]
    steers: Callable[[Any, Any], bool]


@dataclass(frozen=True, slots=True)
class ImageControl:
    """A kind of control that sees the image alone, as a T2I-Adapter does.

    `fits` returns True for the names of its tensors, `build` its network without weights, from their shapes.
    """

    fits: Callable[[Collection[str]], bool]
    build: Callable[[Shapes], nn.Module]


UNIT_TFLOP: Final = 0.804  # of one pass of Stable Diffusion 1.5 at 512x512
LAUNCH_SECONDS: Final = 0.010  # of a step whatever its size: launching kernels, the sampler
SECONDS_PER_TFLOP: Final = 0.0052  # of an A100, the reference card of costs


def step_seconds(tflop: float, num_passes: int) -> float:
    """Return the seconds of a step of a network on the reference card."""
    return LAUNCH_SECONDS + SECONDS_PER_TFLOP * tflop * num_passes


UNIT_SECONDS: Final = 20 * step_seconds(UNIT_TFLOP, 2)


@dataclass(frozen=True, slots=True)
class Defaults:
    """Default parameters of an image, and the work of the full network for it.

    `edit` says how a network of the family changes an image after an instruction: by a text encoder that sees the
    image too (`encoder`), by the image's latent alone (`references`), or by latents between the words of the
    instruction (`interleaved`); None where none does. `inpaint` is set for
    a network that sees the mask and the image around it. `guidance` is what the network itself is given, `shift` that
    of the noise levels; None: what stands in the network's own settings. Of a network that draws videos, `video_latent`
    is the node of its empty latent, `video_start` that of a video that begins with an image, each None where it draws
    none such; `frames` and `frame_rate` (frames a second) are those of a video, and `frames_ratio` how many of them,
    behind the first one, its VAE encodes as one latent frame. Of a network that makes audio, `audio_latent` is the node
    of its empty latent, `audio_text` that of its prompt, `seconds` the length of audio, `max_seconds` the longest it
    was trained with; `width` and `height` are those of an image of as many cells. `text_loader` is the node that loads
    a text encoder together with a checkpoint which holds a part of it alone, None where none does.
    `tflop` is the work of one pass of the full network over one item of these sizes, in 10^12 operations, as torch's
    FlopCounterMode counts it; `attention` the share of it that grows with the square of the number of cells, `billions`
    the number of that network's weights in 10^9. Both ends are checked by `tests/contract/graph/test_cost_measured.py`.
    """

    width: int
    height: int
    steps: int
    cfg: float
    sampler_name: str = "euler"
    scheduler: str = "normal"
    tflop: float = UNIT_TFLOP
    attention: float = 0.0
    billions: float = 0.0
    edit: Literal["encoder", "references", "interleaved"] | None = None
    inpaint: Literal["conditioning"] | None = None
    guidance: float | None = None
    shift: float | None = None
    video_latent: str | None = None
    video_start: str | None = None
    frames: int | None = None
    frame_rate: float | None = None
    frames_ratio: int | None = None
    audio_latent: str | None = None
    audio_text: str | None = None
    seconds: float | None = None
    max_seconds: float | None = None
    text_loader: str | None = None

    @property
    def cost(self) -> float:
        """The time of an image on the reference card, relative to one of the default family."""
        return self.steps * step_seconds(self.tflop, 1 if self.cfg == 1.0 else 2) / UNIT_SECONDS


@dataclass(frozen=True, slots=True)
class Scale:
    """Configurations of all networks for a checkpoint of random weights; the text encoders that it has by slot.

    `vision` is that of the image encoder, None where checkpoints have none.
    """

    denoiser: Any
    text: Mapping[str, Any]
    vae: Any
    vision: ImageEncoderConfig | None = None


@dataclass(frozen=True, slots=True)
class ComfyUiNames:
    """Names under which ComfyUI has things of this family.

    `latent_format` is the class in `comfy.latent_formats`. `text_types` are the types of the nodes that load text
    encoders under which those of the family are found, `untyped_slots` those of its encoders that are also taken under
    the default type, which says nothing of the model, where no family of that type has such an encoder. `merge_nodes`
    are nodes that merge two models of the family block by block: class name -> the names of the blocks. `architectures`
    are names of the model specification (github.com/Stability-AI/ModelSpec) by variant, that of "" for variants without
    their own; families without one are saved without such metadata.
    """

    latent_format: str
    text_types: tuple[str, ...] = ()
    merge_nodes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    architectures: Mapping[str, str] = field(default_factory=dict)
    untyped_slots: tuple[str, ...] = ()

    def architecture(self, variant: str) -> str | None:
        """Return the name that the model specification has for a variant, None for a family without one."""
        return self.architectures.get(variant, self.architectures.get(""))


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """A family of models. `name` is for settings and APIs, `label` for people.

    `lineage` names the families whose networks it builds on, by their folders: its modules may import theirs, and those
    of the families in their lineages.

    `file_words` are parts of the names of its files, in lower case without punctuation, by which a file that is not
    here is taken for one of it; `other_file_words` those of other networks whose names contain one of them.
    `file_billions` are the weights (10^9) of networks of other sizes than `default.billions`, by a word of a name
    that has no number for it.

    `detect` looks for the family's denoising network in a file, alone or in a checkpoint; it is pure. `parameterise`
    may read tensors; `parameterisation` is that of a model without a file. `variants` are the forms of the network that
    see more than the noisy latent: their names, and the `concat_keys` of `Denoiser`. `variant_types` gives the denoiser
    types of those that differ in it, `variant_defaults` the default parameters of those that have others.
    `denoiser_lora_keys` maps the
    names used in LoRA files to the weights of the network, given their names and its configuration.
    `renamed_lora` gives the tensors of LoRA files with other conventions the common names, for a network of a
    configuration.
    `control_networks` are kinds of ControlNets beside those of `controls`, `model_patches` further networks that nodes
    of the family attach to its denoising network (`ModelPatchLoader`). `image_control` is the kind of control that
    sees the image alone.
    `latent_upscalers` are networks that enlarge its latents (`LatentUpscaleModelLoader`).
    `further_vaes` are autoencoders of files of their own, beside `vae`: that of audio where videos have some.
    `takes_hypernetworks` says that there are hypernetworks for its attention,
    `takes_fewer_encoders` says that some of the text encoders may be left out, `num_taken_encoders` is the number of
    them that a model has where that is not all; a family that takes no prompt has none. `text_dtypes` are the types in
    which they compute where that is not float32, as text encoders do.
    `vision_prefix` is that of the image encoder in its checkpoints. `memory_usage_factor` is ComfyUI's.
    `sizes` are configurations of its denoising network by the name of the size: `full` is the published one, `small` a
    tiny one that a CPU can run. Text encoders and VAE have theirs under the same names, `vision` those of the image
    encoder. `nodes` are the nodes of a plain workflow.
    """

    name: str
    label: str
    detect: Callable[[TensorIndex], Match | None]
    parameterise: Callable[[Match, TensorReader], Parameterisation]
    denoiser: Network
    text: tuple[TextEncoder, ...]
    vae: Network
    latent_format: type[LatentFormat]
    denoiser_lora_keys: Callable[[Iterable[str], Any], Mapping[str, LoraTarget]]
    comfyui: ComfyUiNames
    default: Defaults
    nodes: tuple[str, ...]
    parameterisation: Parameterisation
    sizes: Mapping[str, Any]
    further_vaes: tuple[Network, ...] = ()
    denoiser_type: type[Denoiser] = Denoiser
    variants: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    variant_types: Mapping[str, type[Denoiser]] = field(default_factory=dict)
    variant_defaults: Mapping[str, Defaults] = field(default_factory=dict)
    combine_text: Callable[[Mapping[str, Encoded]], Encoded] = only_encoder
    controls: ControlModels | None = None
    control_networks: tuple[ControlNetwork, ...] = ()
    image_control: ImageControl | None = None
    model_patches: tuple[Network, ...] = ()
    latent_upscalers: tuple[Network, ...] = ()
    renamed_lora: Callable[[Tensors, Any], Tensors] = _as_named
    memory_usage_factor: float = 1.0
    takes_fewer_encoders: bool = False
    num_taken_encoders: int | None = None
    text_dtypes: DtypePolicy | None = None
    takes_hypernetworks: bool = False
    lineage: tuple[str, ...] = ()
    file_words: tuple[str, ...] = ()
    other_file_words: tuple[str, ...] = ()
    file_billions: Mapping[str, float] = field(default_factory=dict, hash=False)
    vision_prefix: str | None = None
    vision: Mapping[str, ImageEncoderConfig] = field(default_factory=dict)
    is_default: bool = False

    @property
    def dtypes(self) -> DtypePolicies:
        """The types in which its networks compute."""
        return DtypePolicies(unet=self.denoiser.dtypes, vae=self.vae.dtypes, text_encoder=self.text_dtypes)

    @property
    def scales(self) -> dict[str, Scale]:
        """Configurations of the networks of a checkpoint of random weights, by the name of the size."""
        return {name: self._scale(name) for name in self.sizes}

    def _scale(self, name: str) -> Scale:
        text = {item.encoding.slot: item.network.sizes[name] for item in self.text if name in item.network.sizes}
        return Scale(self.sizes[name], text, self.vae.sizes[name], self.vision.get(name))

    def text_of(self, scale: Scale) -> tuple[TextEncoder, ...]:
        """Return the text encoders of a checkpoint of that scale."""
        return tuple(encoder for encoder in self.text if encoder.encoding.slot in scale.text)

    def text_lora_keys(self, weight_names: Iterable[str]) -> dict[str, str]:
        """Return a map from the names used in LoRA files to the weights of all text encoders."""
        names = list(weight_names)
        own = {key: name for encoder in self.text for key, name in encoder.lora_keys(names).items()}
        return {**encoder_set_keys(names), **own}

    def network_lora_keys(self, weight_names: Iterable[str], config: Any) -> dict[str, LoraTarget]:
        """Return a map from the names used in LoRA files to the weights of the denoising network, or parts of them.

        The names that every network's files may use come first: those of the family stand above them.
        """
        names = list(weight_names)
        return {**denoiser_keys(names, {}), **self.denoiser_lora_keys(names, config)}

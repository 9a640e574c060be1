"""Families of models as an engine reports them. Pure.

Which families there are, and what each needs for an image, is the engine's: the front has no list of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from darkroom.contract.graph.output_sizes import DEFAULT_FRAMES_RATIO, latent_frames_of
from darkroom.worker.json.values import JsonObject

NETWORK_PARAMETERS: Final = (
    "edit",
    "inpaint",
    "guidance",
    "shift",
    "shift_by",
    "text_type",
    "text_loader",
    "has_text",
    "video_latent",
    "video_start",
    "audio_latent",
    "max_seconds",
)
WORK_PARAMETERS: Final = ("attention", "tflop", "billions", "frames_ratio")
SAME_SIZE: Final = 0.1  # in the number of weights: variants of a network have a few more or fewer
OTHER_SIZES: Final = (0.05, 50.0)  # of a family's networks, relative to its full one; others are made for tests
GUIDED_PASSES: Final = 2
CFG_WITHOUT_GUIDANCE: Final = 1.0


@dataclass(frozen=True, slots=True)
class ImageDefaults:
    """Parameters of an image that a family has by default."""

    width: int
    height: int
    steps: int
    cfg: float
    sampler_name: str
    scheduler: str
    attention: float = 0.0  # share of the work that grows with the square of the cells
    tflop: float = 0.0  # of one pass of the full network over one item, 10^12 operations; 0: not known
    billions: float = 0.0  # of weights of that network; 0: not known
    edit: str | None = None  # how its networks edit images by an instruction
    inpaint: str | None = None  # how they paint below a mask
    guidance: float | None = None  # that the network itself is given
    shift: float | None = None  # of the noise levels
    shift_by: str | None = None  # the node that shifts them
    text_type: str | None = None  # of the nodes that load text encoders
    text_loader: str | None = None  # the node that loads a text encoder of which the checkpoint holds a part
    has_text: bool | None = None  # False for a checkpoint without text encoders, None where that is not known
    video_latent: str | None = None  # the node of a video's empty latent
    video_start: str | None = None  # the node of a video that begins with an image
    frames: int | None = None  # of a video
    frame_rate: float | None = None  # frames a second
    frames_ratio: int = DEFAULT_FRAMES_RATIO  # frames of a video, behind the first one, for each latent frame
    audio_latent: str | None = None  # the node of audio's empty latent
    seconds: float | None = None  # of audio
    max_seconds: float | None = None  # the longest audio that its networks were trained with

    def of_network(self) -> dict[str, object]:
        """Return the parameters that depend on the kind of network, by name."""
        return {name: value for name in NETWORK_PARAMETERS if (value := getattr(self, name)) is not None}

    def as_json(self) -> dict[str, object]:
        """Return the parameters that the family has, by name."""
        found = {name: getattr(self, name) for name in self.__slots__ if name not in WORK_PARAMETERS}
        return {name: value for name, value in found.items() if value is not None}

    @property
    def latent_frames(self) -> float:
        """Latent frames of a video, 1 for images."""
        return latent_frames_of(self.frames or 1, self.frames_ratio)

    @property
    def work(self) -> float:
        """Pixels x latent frames x steps x passes of the network."""
        passes = 1 if self.cfg == CFG_WITHOUT_GUIDANCE else GUIDED_PASSES
        return self.width * self.height * self.latent_frames * self.steps * passes


@dataclass(frozen=True, slots=True)
class Family:
    """A family of models. `pixel_cost` is the cost of a pixel, step and pass relative to the default family's.

    `variants` are the parameters of variants of its network that have others. `file_words` are parts of the names of
    its files, `other_file_words` those of networks of no family here whose names contain one of them,
    `file_billions` the weights (10^9) of its networks of other sizes, by a word of a file's name.
    """

    name: str
    default: ImageDefaults
    is_default: bool = False
    pixel_cost: float = 1.0
    variants: Mapping[str, ImageDefaults] = field(default_factory=dict)
    file_words: tuple[str, ...] = ()
    other_file_words: tuple[str, ...] = ()
    file_billions: Mapping[str, float] = field(default_factory=dict)

    def attention_factor(self, pixels: float) -> float:
        """Return the cost of a pixel among `pixels` of an image or video, relative to one of the default's size."""
        own = self.default.width * self.default.height * self.default.latent_frames
        return 1.0 + self.default.attention * (pixels / own - 1.0)

    def variant(self, name: str) -> Family:
        """Return the family with the parameters of a variant of its network."""
        return replace(self, default=self.variants[name]) if name in self.variants else self

    def with_text(self, has_text: bool | None) -> Family:
        """Return the family with the parameters of a checkpoint that has text encoders, or has none."""
        return self if has_text is None else replace(self, default=replace(self.default, has_text=has_text))

    def of_size(self, num_weights: float | None) -> Family:
        """Return the family with the work of a network of so many weights; None: of its full network.

        The work of a transformer's layers grows with its weights, that of attention with their number and width alone.
        """
        full = self.default.billions * 1e9
        if not num_weights or not full:
            return self
        share = num_weights / full
        if abs(share - 1.0) < SAME_SIZE or not OTHER_SIZES[0] <= share <= OTHER_SIZES[1]:
            return self
        attention = self.default.attention * share ** (2 / 3)
        factor = (1.0 - self.default.attention) * share + attention
        default = replace(
            self.default,
            tflop=self.default.tflop * factor,
            attention=attention / factor,
            billions=num_weights / 1e9,
        )
        return replace(self, default=default, pixel_cost=self.pixel_cost * factor)


def read_families(answer: object) -> tuple[Family, ...]:
    """Read the answer of `/api/v1/families`, the default family first; empty for the answer of another kind of engine.

    A family whose description is not understood is left out.
    """
    described = [item for item in answer if isinstance(item, Mapping)] if isinstance(answer, list) else []
    found = [(item, defaults) for item in described if (defaults := _read_defaults(item.get("default"))) is not None]
    if not found or found[0][0] is not described[0]:
        return ()
    unit = found[0][1].work
    return tuple(
        Family(
            name=str(item.get("name")),
            default=defaults,
            is_default=place == 0,
            pixel_cost=_read_cost(item["default"]) * unit / defaults.work,
            variants=_read_variants(item.get("variants")),
            file_words=_words(item.get("file_words")),
            other_file_words=_words(item.get("other_file_words")),
            file_billions=_read_numbers(item.get("file_billions")),
        )
        for place, (item, defaults) in enumerate(found)
    )


def _read_defaults(described: Any) -> ImageDefaults | None:
    try:
        defaults = ImageDefaults(
            width=int(described["width"]),
            height=int(described["height"]),
            steps=int(described["steps"]),
            cfg=float(described["cfg"]),
            sampler_name=str(described["sampler_name"]),
            scheduler=str(described["scheduler"]),
            attention=min(max(_number(described.get("attention")) or 0.0, 0.0), 1.0),
            tflop=max(_number(described.get("tflop")) or 0.0, 0.0),
            billions=max(_number(described.get("billions")) or 0.0, 0.0),
            edit=_text(described.get("edit")),
            inpaint=_text(described.get("inpaint")),
            shift_by=_text(described.get("shift_by")),
            text_type=_text(described.get("text_type")),
            text_loader=_text(described.get("text_loader")),
            guidance=_number(described.get("guidance")),
            shift=_number(described.get("shift")),
            video_latent=_text(described.get("video_latent")),
            video_start=_text(described.get("video_start")),
            frames=_count(described.get("frames")),
            frame_rate=_number(described.get("frame_rate")),
            frames_ratio=_count(described.get("frames_ratio")) or DEFAULT_FRAMES_RATIO,
            audio_latent=_text(described.get("audio_latent")),
            seconds=_number(described.get("seconds")),
            max_seconds=_number(described.get("max_seconds")),
        )
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return None
    return defaults if defaults.work > 0 else None


def _read_variants(described: object) -> dict[str, ImageDefaults]:
    items = described.items() if isinstance(described, Mapping) else ()
    return {str(name): defaults for name, item in items if (defaults := _read_defaults(item)) is not None}


def _read_numbers(described: object) -> dict[str, float]:
    items = described.items() if isinstance(described, Mapping) else ()
    return {str(name): number for name, item in items if (number := _number(item)) is not None}


def _words(value: object) -> tuple[str, ...]:
    return tuple(str(word) for word in value) if isinstance(value, list | tuple) else ()


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _read_cost(described: JsonObject) -> float:
    cost = described.get("cost")
    return float(cost) if isinstance(cost, int | float) and 0 < cost < float("inf") else 1.0

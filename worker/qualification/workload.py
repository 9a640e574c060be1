"""Workload of the start-up benchmark: the prompts to send to each kind of machine. Pure.

The workload is text-to-image with one family of models through the engine's own queue, so what is measured is what jobs
get. A checkpoint is used only where it is one of that family at full size (`CheckpointFact`, which the caller gets from
the engine); otherwise `DarkroomRandomCheckpoint` makes the full-size network with random weights on the device, at the
same cost per step and without a download. A workflow of the user's own may stand in its place.

A CPU would need minutes for that. There the network is a small one, or the checkpoint the user names; a first small
run measures how fast a step is, and the image (and, if need be, the steps) shrink until all runs fit
`CPU_BUDGET_SECONDS`. The report says what was run, and counts it in the same unit of work.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from pydantic import BaseModel, ConfigDict, Field

from darkroom.contract.unit import (
    UNIT_CFG,
    UNIT_PASSES,
    UNIT_PIXELS,
    UNIT_SAMPLER,
    UNIT_SCHEDULER,
    UNIT_SIDE_PX,
    UNIT_STEPS,
    UNIT_WORKLOAD,
)
from darkroom.modifiers.measured_workflow import Measured, measured_workflow

GPU_SCALE: Final = "full"
CPU_SCALE: Final = "small"

CPU_BUDGET_SECONDS: Final = 6.0
CPU_CALIBRATION_PX: Final = 64
CPU_CALIBRATION_STEPS: Final = 2
CPU_SIZES_PX: Final = (UNIT_SIDE_PX, 384, 256, 192, 128, 64)

MIN_RUNS: Final = 3

RANDOM_INT: Final = "__RANDOM_INT__"
RANDOM_PROMPT: Final = "__RANDOM_PROMPT__"

UNIT_FLOPS: Final = 34.6e12
"""Operations of the unit of work: 20 guided steps at 1.607e12, decoding 2.5e12, counted by torch's FlopCounterMode."""


MATRIX_SHARE: Final = 0.5
"""Share of the speed of plain matrix products that the full network reaches on a CPU at least."""


class Wanted(Protocol):
    """The settings this reads; `BenchmarkConfig` of the front is one. None is what the family draws by default."""

    @property
    def width_px(self) -> int | None: ...
    @property
    def height_px(self) -> int | None: ...
    @property
    def num_steps(self) -> int | None: ...


class Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


# --- what is known of the machine -------------------------------------------------------------------------------------


class CheckpointFact(Data):
    """A checkpoint the engine has.

    `family` is None where the engine does not say, and empty for a file of no known family. `scale` is the size of the
    family's network that it has.
    """

    name: str
    family: str | None = None
    scale: str | None = None
    size_bytes: int | None = None


class FamilyFact(Data):
    """A family of models and what it draws by default; by default, that of the unit of work.

    `pixel_cost` is the cost of a pixel, step and pass of the network, relative to the default family's. `name` is empty
    where the engine names no families.
    """

    name: str = ""
    is_default: bool = True
    width_px: int = UNIT_SIDE_PX
    height_px: int = UNIT_SIDE_PX
    num_steps: int = UNIT_STEPS
    cfg: float = UNIT_CFG
    sampler_name: str = UNIT_SAMPLER
    scheduler: str = UNIT_SCHEDULER
    pixel_cost: float = Field(default=1.0, gt=0)

    @property
    def passes(self) -> float:
        """Evaluations of the network for a step, relative to the unit's."""
        return 1 / UNIT_PASSES if self.cfg == 1 else 1.0


class DeviceFact(Data):
    """The device the engine runs on, as `/system_stats` tells: `kind` is its `type` ("cuda", "cpu", ...)."""

    name: str
    kind: str

    @property
    def is_cpu(self) -> bool:
        """The processor does the arithmetic, also where it plays a device with little memory (`--simulate-vram`)."""
        return self.kind in ("cpu", "simulated")

    @property
    def product(self) -> str:
        """The name without torch's index and allocator around it: `cuda:0 NVIDIA A100 : native` -> `NVIDIA A100`."""
        name = self.name.partition(" ")[2] if self.name.startswith(f"{self.kind}:") else self.name
        return name.partition(" : ")[0].strip()


# --- what is run ------------------------------------------------------------------------------------------------------


class TextToImage(Data):
    """The built-in workload. `scale` is the size of the random network, None with a checkpoint."""

    width_px: int
    height_px: int
    num_steps: int
    checkpoint: str = Field(description="A file name, or `random` for a network with random weights.")
    scale: str | None = None
    family: FamilyFact = FamilyFact()

    @property
    def model(self) -> str:
        if self.scale is None:
            return self.checkpoint
        return f"random:{self.scale}" if self.family.is_default else f"random:{self.family.name}:{self.scale}"

    @property
    def size(self) -> str:
        return f"{self.width_px}x{self.height_px}x{self.num_steps}"

    @property
    def is_standard(self) -> bool:
        """True for the workload of published figures: the default family's full network in the unit's size."""
        has_unit_size = (self.width_px, self.height_px) == (UNIT_SIDE_PX, UNIT_SIDE_PX)
        return self.family.is_default and self.scale in (None, GPU_SCALE) and has_unit_size

    @property
    def is_estimate(self) -> bool:
        return self.scale == CPU_SCALE

    @property
    def workload(self) -> float:
        """Work of one run. The small network's is its share of the unit's arithmetic, about equal in all families."""
        pixels, unit = self.width_px * self.height_px, UNIT_WORKLOAD * self.family.passes
        if self.scale == CPU_SCALE:
            return unit * _small_network_flops(pixels, self.num_steps) / UNIT_FLOPS
        return unit * self.family.pixel_cost * pixels * self.num_steps / (UNIT_PIXELS * UNIT_STEPS)

    def prompt(self, text: str, rng: random.Random) -> dict[str, Any]:
        return text_to_image(self, text, rng.randrange(2**32))


class OwnWorkload(Data):
    """A workflow of the user's in the built-in one's place; `digest` tells it from others of the same name."""

    name: str
    digest: str
    workflow: dict[str, Any]
    workload: float = UNIT_WORKLOAD

    @property
    def model(self) -> str:
        return f"{self.name}#{self.digest}"

    @property
    def size(self) -> str:
        return "own"

    @property
    def is_standard(self) -> bool:
        return False

    @property
    def is_estimate(self) -> bool:
        return False

    def prompt(self, text: str, rng: random.Random) -> dict[str, Any]:
        """Return the workflow with new seeds, so that no run is answered from the engine's cache."""
        return with_new_seeds(self.workflow, rng, text)


Workload = TextToImage | OwnWorkload


def parse_prompts(text: str) -> tuple[str, ...]:
    """Return the prompts of `misc/test_prompts.txt`: one a line, without empty lines and lines that start with #."""
    lines = (line.strip() for line in text.splitlines())
    return tuple(line for line in lines if line and not line.startswith("#"))


def choose_workload(
    wanted: Wanted,
    device: DeviceFact,
    checkpoints: Sequence[CheckpointFact],
    *,
    has_random_checkpoint: bool,
    family: FamilyFact | None = None,
    checkpoint: str = "",
) -> TextToImage | None:
    """Return the built-in workload for this machine; None without a full-size checkpoint and without our node.

    `family` is the one to measure, by default the unit's; `checkpoint` the one to take, where the engine names no
    families of its files. On a CPU none is looked for, as reading 2 GB takes the better part of the time there is.
    """
    measured = family or FamilyFact()
    chosen = None if device.is_cpu else choose_checkpoint(checkpoint, checkpoints, measured)
    if chosen is None and not has_random_checkpoint:
        return None
    scale = None if chosen else CPU_SCALE if device.is_cpu else GPU_SCALE
    return TextToImage(
        width_px=wanted.width_px or measured.width_px,
        height_px=wanted.height_px or measured.height_px,
        num_steps=wanted.num_steps or measured.num_steps,
        checkpoint=chosen or "random",
        scale=scale,
        family=measured,
    )


def choose_checkpoint(wanted: str, checkpoints: Sequence[CheckpointFact], family: FamilyFact) -> str | None:
    """Return the named checkpoint, else the first, of those with the family's full network; None without one.

    A named one of an engine that says nothing of its files is taken at the user's word.
    """
    fitting = (fact for fact in checkpoints if fact.family == family.name and fact.scale == GPU_SCALE)
    if not wanted:
        return next((fact.name for fact in fitting), None)
    unseen = (fact for fact in checkpoints if fact.family is None)
    return next((fact.name for fact in (*fitting, *unseen) if fact.name == wanted), None)


def calibration(workload: TextToImage) -> TextToImage:
    """Return the small run that measures how long a step takes on a CPU."""
    return workload.model_copy(
        update={
            "width_px": min(workload.width_px, CPU_CALIBRATION_PX),
            "height_px": min(workload.height_px, CPU_CALIBRATION_PX),
            "num_steps": min(workload.num_steps, CPU_CALIBRATION_STEPS),
        }
    )


def fit_to_cpu(workload: TextToImage, calibrated: TextToImage, seconds: float) -> TextToImage:
    """Return the largest image, and then the most steps, with which warm-up and timed runs fit the budget.

    `seconds` is what the calibration took after its model was there; time grows with pixels and steps.
    """
    per_pixel_step = seconds / (calibrated.width_px * calibrated.height_px * calibrated.num_steps)
    for side in CPU_SIZES_PX:
        width, height = min(workload.width_px, side), min(workload.height_px, side)
        # The larger the image, the slower a pixel: attention grows faster than it, by half again at the unit's.
        step_seconds = per_pixel_step * width * height * (1 + 0.5 * (width * height) / UNIT_PIXELS)
        num_steps = int(CPU_BUDGET_SECONDS / (MIN_RUNS + 1) / max(step_seconds, 1e-9))
        if num_steps >= min(workload.num_steps, 4) or side == CPU_SIZES_PX[-1]:
            num_steps = max(1, min(workload.num_steps, num_steps))
            return workload.model_copy(update={"width_px": width, "height_px": height, "num_steps": num_steps})
    raise AssertionError("the last size always fits")


def why_shrunk(wanted: Workload, device: DeviceFact, run: Workload) -> str | None:
    if not device.is_cpu or isinstance(run, OwnWorkload) or isinstance(wanted, OwnWorkload):
        return None
    network = "small random network" if run.scale == CPU_SCALE else run.checkpoint
    return (
        f"On a CPU the runs are kept to about {CPU_BUDGET_SECONDS:g} s: {network} at {run.width_px}x{run.height_px}, "
        f"{run.num_steps} steps, where {wanted.width_px}x{wanted.height_px}, {wanted.num_steps} steps were wanted. "
        "its_per_second is that of this run; workload_per_second is in the common unit."
    )


def text_to_image(settings: TextToImage, text: str, seed: int) -> dict[str, object]:
    """Return the built-in workflow in API format."""
    family = settings.family
    sampling = {
        "seed": seed,
        "steps": settings.num_steps,
        "cfg": family.cfg,
        "sampler_name": family.sampler_name,
        "scheduler": family.scheduler,
    }
    width, height = settings.width_px, settings.height_px
    return measured_workflow(Measured(settings.checkpoint, family.name, settings.scale, width, height, sampling), text)


def with_new_seeds(workflow: Mapping[str, Any], rng: random.Random, text: str = "") -> dict[str, Any]:
    """Return a copy in which every integer `seed` or `noise_seed`, and `__RANDOM_INT__`, has a new random value.

    `text` stands in the place of `__RANDOM_PROMPT__`.
    """

    def fresh(name: str, value: object) -> object:
        is_seed = name in ("seed", "noise_seed") and isinstance(value, int) and not isinstance(value, bool)
        if is_seed or value == RANDOM_INT:
            return rng.randrange(2**32)
        if isinstance(value, str):
            return value.replace(RANDOM_PROMPT, text).replace(RANDOM_INT, str(rng.randrange(2**32)))
        return value

    return {
        node_id: {**node, "inputs": {name: fresh(name, value) for name, value in (node.get("inputs") or {}).items()}}
        for node_id, node in workflow.items()
    }


def estimated_workload_per_second(small_network: float, matrix_tflops: float | None) -> float:
    """Return the estimated speed of a CPU with the full network, where only the small one was run.

    A small network in a small image spends most of its time between its operations, so by its arithmetic alone
    (`small_network`, in the unit) a machine seems ten to a hundred times as slow as it is.
    """
    return max(small_network, UNIT_WORKLOAD * MATRIX_SHARE * (matrix_tflops or 0.0) * 1e12 / UNIT_FLOPS)


def _small_network_flops(pixels: int, num_steps: int) -> float:
    """Fitted to FlopCounterMode's counts at 64 to 512 pixels a side, with guidance; within 10 %."""
    step = 65_700 * pixels + 0.393 * pixels**2
    decoding = 169_200 * pixels + 0.0625 * pixels**2
    return num_steps * step + decoding

"""The parts of `benchmark/gpu.py`: their order, their time, and which may run at the same time. Pure.

The most valuable come first, so that a short call measures those. Each part gets `want_seconds`, or what is left of the
call's time where that is less; one that would get less than `least_seconds` is skipped and named.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

AT_ONCE = 4  # parts whose result is no time
CLOSING_SECONDS = 4.0  # of the call, to end children and to write the files
ENDING_SHARE, MOST_ENDING_SECONDS = 0.1, 4.0  # of a part's time, to end by itself before it is killed
TOY_WANT, TOY_LEAST = 240.0, 5.0  # machines without a card are slow, and busy with other tests


@dataclass(frozen=True, slots=True)
class Part:
    """One part: what it measures and what that decides. One that is not `is_timed` may run together with others."""

    name: str
    about: str
    want_seconds: float
    least_seconds: float
    is_timed: bool = True

    def for_toy(self) -> Part:
        """Return the part with the time that it may take where it only proves itself."""
        return Part(self.name, self.about, TOY_WANT, TOY_LEAST, self.is_timed)


PARTS: Sequence[Part] = (
    Part("machine", "rates of matrix products, copies and the disk: the ceilings of the other figures", 20, 8),
    Part("sd15", "SD1.5 512x512, batches of 1 and 4: plain, each graph, the strategies that compile nothing", 50, 15),
    Part("capture", "a graph of every network, of failed captures, and torch's state afterwards", 70, 15, False),
    Part("sdxl", "SDXL 1024x1024: plain, each graph, the strategies that compile nothing, decoding", 45, 15),
    Part("flux", "Flux.1-dev 1024x1024: plain, graph, attention, float8 products, float8 weights", 60, 20),
    Part("peer_comfyui", "ComfyUI on the same card with the same shapes, plain and with --fast", 70, 25),
    Part("families", "latents of every family on the device beside the CPU's in float32", 90, 20, False),
    Part("memory", "tests/gpu, equal bits in every memory mode, out of memory", 100, 20, False),
    Part("tuning", "every strategy in turn with SD1.5, blocks compiled last: which of them gain", 90, 40),
    Part("eight", "eight clients: cost, error and bits of each batch width, images a minute", 55, 20),
    Part("wan", "Wan 1.3B of 33 frames and Wan 2.2 5B of 25: a step and the peak of memory", 40, 15),
    Part("load", "file to the device, start to the first image, eviction and the way back", 50, 20),
    Part("peer_diffusers", "diffusers on the same card: eager and compiled", 70, 25),
    Part("front", "the worker around the engine: idle time between jobs", 30, 15),
)


def chosen(names: Sequence[str] | None, *, is_toy: bool) -> list[Part]:
    """Return the parts with these names in their own order, all without names. Raises ValueError for an unknown one."""
    known = {part.name for part in PARTS}
    unknown = [name for name in names or () if name not in known]
    if unknown:
        raise ValueError(f"--only: unknown part; got {unknown[0]!r}, expected {', '.join(part.name for part in PARTS)}")
    found = [part for part in PARTS if names is None or part.name in names]
    return [part.for_toy() for part in found] if is_toy else found


def budget(part: Part, left_seconds: float) -> float | None:
    """Return the seconds after which a part is killed; None where too little is left to begin it."""
    left = left_seconds - CLOSING_SECONDS
    return None if left < part.least_seconds else min(part.want_seconds, left)


def told_seconds(limit_seconds: float) -> float:
    """Return the seconds in which a part is asked to end, so that it need not be killed."""
    return limit_seconds - min(MOST_ENDING_SECONDS, ENDING_SHARE * limit_seconds)


def may_begin(part: Part, running: Collection[Part]) -> bool:
    """Return True where a part may begin beside those that run: a timed one runs alone."""
    if not running:
        return True
    return not part.is_timed and not any(other.is_timed for other in running) and len(running) < AT_ONCE

"""The keys and values of text and reference images, kept between the steps of one sampling run of Qwen-Image 2.1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from darkroom.engine.diffusion.wrappers import with_option_for_run
from darkroom.engine.families.qwen_image21.prefix_states import OPTION, PrefixStates, Storage

Place = Literal["auto", "gpu", "cpu", "off"]
SPARE, LEAST = 4, 2  # times its bytes that have to be free for one that `auto` keeps on the device, and for any
HOST = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Placement:
    """The place of prefixes: the device that computes, RAM, or, by `auto`, the first of the two that has room."""

    place: Place
    device_bytes: Callable[[], float]
    ram_bytes: Callable[[], float]

    def __call__(self, num_bytes: int, device: torch.device) -> torch.device | None:
        """Return the device for so many bytes, None where there is no room."""
        if self.place in ("auto", "gpu"):
            times = SPARE if self.place == "auto" else LEAST
            if self.device_bytes() > times * num_bytes:
                return device
        if self.place in ("auto", "cpu") and self.ram_bytes() > LEAST * num_bytes:
            return HOST
        return None


def keeping_run(place: Place, storage: Storage, ram_bytes: Callable[[], float]) -> Callable[..., object]:
    """Return a wrapper of a sampling run that keeps prefixes while it lasts."""

    def made(device_bytes: Callable[[], float]) -> PrefixStates | None:
        return None if place == "off" else PrefixStates(Placement(place, device_bytes, ram_bytes), storage)

    return with_option_for_run(OPTION, made)

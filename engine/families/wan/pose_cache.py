"""Keys and values of a video of poses, kept between the steps of one sampling run of Wan-Animate 2."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from darkroom.engine.diffusion.wrappers import with_option_for_run
from darkroom.engine.families.wan.pose_states import OPTION, PoseStates, Storage

Place = Literal["cpu", "gpu"]
LEAST = 1.5  # times its bytes that have to be free for one that is kept
HOST = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Placement:
    """The place of videos of poses: RAM or the device that computes."""

    place: Place
    device_bytes: Callable[[], float]
    ram_bytes: Callable[[], float]

    def __call__(self, num_bytes: int, device: torch.device) -> torch.device | None:
        """Return the device for so many bytes, None where there is no room."""
        free, found = (self.device_bytes(), device) if self.place == "gpu" else (self.ram_bytes(), HOST)
        return found if free > LEAST * num_bytes else None


def keeping_poses(place: Place, storage: Storage, ram_bytes: Callable[[], float]) -> Callable[..., object]:
    """Return a wrapper of a sampling run that keeps videos of poses while it lasts."""
    return with_option_for_run(
        OPTION, lambda device_bytes: PoseStates(Placement(place, device_bytes, ram_bytes), storage)
    )

"""T2I-Adapters of every form at narrow widths, and a recorder of what ComfyUI's networks return for them.

    PYTHONPATH=.:COMFYUI_DIR python -m tests.engine.models.kinds.t2i_cases

writes `t2i_reference.safetensors` beside this file: the additions of every case by place and index. It needs a checkout
of ComfyUI 0.3.64 and a Python with its requirements.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.parity.weights import draw_noise

REFERENCE = Path(__file__).with_name("t2i_reference.safetensors")
WIDTHS = (8, 16, 32, 32)


@dataclass(frozen=True, slots=True)
class T2iCase:
    """An adapter: channels after folding the image, the kernel of its blocks, and the image's shape."""

    name: str
    in_channels: int
    image: tuple[int, int, int, int]
    kernel_size: int = 1
    downs_by_conv: bool = False
    is_light: bool = False

    @property
    def is_xl(self) -> bool:
        return self.in_channels in (256, 768)

    def make_image(self) -> torch.Tensor:
        return torch.from_numpy(draw_noise(self.name, "picture", self.image))


CASES = (
    T2iCase("full", 192, (1, 3, 72, 64)),
    T2iCase("full_grey_by_conv", 64, (2, 1, 64, 88), kernel_size=3, downs_by_conv=True),
    T2iCase("xl", 768, (1, 3, 96, 80)),
    T2iCase("xl_grey_by_conv", 256, (1, 1, 64, 64), kernel_size=3, downs_by_conv=True),
    T2iCase("light", 192, (1, 3, 64, 72), is_light=True),
)


def fill(network: torch.nn.Module, case: T2iCase) -> torch.nn.Module:
    """Draw the weights of a network, the same for every network with these names."""
    drawn = {
        name: torch.from_numpy(draw_noise(case.name, name, tuple(weight.shape))) * weight[0].numel() ** -0.5
        for name, weight in network.state_dict().items()
    }
    network.load_state_dict(drawn)
    return network.eval()


def flat(case: T2iCase, features: Mapping[str, Sequence[torch.Tensor | None]]) -> dict[str, torch.Tensor]:
    """Return the additions by case, place and index; places without one are empty tensors."""
    return {
        f"{case.name}/{place}/{index}": torch.empty(0) if item is None else item.contiguous()
        for place, items in features.items()
        for index, item in enumerate(items)
    }


def main() -> int:
    sys.argv = [sys.argv[0], "--cpu"]
    networks = importlib.import_module("comfy.t2i_adapter.adapter")
    results: dict[str, torch.Tensor] = {}
    for case in CASES:
        if case.is_light:
            network = networks.Adapter_light(cin=case.in_channels, channels=list(WIDTHS), nums_rb=4)
        else:
            network = networks.Adapter(
                cin=case.in_channels, channels=list(WIDTHS), nums_rb=2, ksize=case.kernel_size, sk=True,
                use_conv=case.downs_by_conv, xl=case.is_xl,
            )  # fmt: skip
        with torch.no_grad():
            results |= flat(case, fill(network, case)(case.make_image()))
    save_file(results, REFERENCE)
    return 0


if __name__ == "__main__":
    sys.exit(main())

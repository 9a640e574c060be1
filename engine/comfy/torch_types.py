"""Forms in which packs name devices and types of tensors, as torch takes them."""

from __future__ import annotations

import torch

DeviceLike = torch.device | str | int

"""The order of the attention kernels is the process's, and holds while any run computes."""

from __future__ import annotations

from typing import Any

import torch

from darkroom.engine.memory.device import ATTENTION_KERNELS, AcceleratorDevice

get_order: Any = torch._C._get_sdp_priority_order


def test_the_first_run_that_ends_leaves_the_kernels_to_the_others() -> None:
    before = get_order()
    device = AcceleratorDevice("cuda:0", "cuda")
    first, second = device.computing(), device.computing()
    first.__enter__()
    preferred = get_order()
    second.__enter__()
    first.__exit__(None, None, None)
    assert get_order()[0] == preferred[0] == ATTENTION_KERNELS[0].value
    second.__exit__(None, None, None)
    assert get_order() == before

"""Errors of CUDA that say that a card is lost are recognised."""

from __future__ import annotations

import pytest

from darkroom.engine.errors import DeviceLost
from darkroom.engine.memory.device import translate_device_error


@pytest.mark.parametrize(
    "said",
    [
        "CUDA error: an illegal memory access was encountered",
        "CUDA error: uncorrectable ECC error encountered",
        "CUDA error: uncorrectable NVLink error detected during the execution",
        "CUDA error: an illegal instruction was encountered",
        "CUDA error: the launch timed out and was terminated",
        "CUDA error: unknown error",
        "CUDA driver error: unknown error",
        "CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error",
        "CUDA error: operation not supported on global/shared address space",
    ],
)
def test_a_broken_context_is_a_lost_device(said: str) -> None:
    with pytest.raises(DeviceLost), translate_device_error():
        raise RuntimeError(said)


def test_any_other_error_stays_what_it_is() -> None:
    with pytest.raises(RuntimeError, match="shapes"), translate_device_error():
        raise RuntimeError("shapes cannot be multiplied")

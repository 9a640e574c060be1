"""Samplers that read noise levels from the host's memory, so that no step waits for the device.

A sampler compares levels and computes its coefficients from them. Where they are on the device, each comparison waits
until all kernels before it have run, and the next step's kernels are launched late.
"""

from __future__ import annotations

from engine.diffusion.options import Options
from engine.diffusion.sample import SIGMAS_ON_HOST
from engine.tuning.quality import Quality
from engine.tuning.strategy import MachineFacts, SamplingUse, Strategy


class HostSigmas(Strategy):
    """Noise levels of built-in samplers on the host."""

    name = "host_sigmas"
    quality = Quality.SAME
    about = "samplers read noise levels from the host's memory, so that no step waits for the device"

    def missing(self, machine: MachineFacts) -> str | None:
        return "noise levels are on the host already" if machine.device_type == "cpu" else None

    def options(self, use: SamplingUse) -> Options:
        return {SIGMAS_ON_HOST: True}

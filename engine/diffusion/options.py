"""Types of the open dictionaries that sampling passes on: nodes and custom nodes put into them what they want."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Options = Mapping[str, Any]  # model_options and transformer_options, as they are read
OptionDict = dict[str, Any]  # the same, where they are made or changed
ExtraArgs = Mapping[str, Any]  # what each call of a model takes besides the latent and the noise level
Conditioning = Sequence[Sequence[Any]]  # CONDITIONING: pairs of tokens [B, T, D] and a dictionary
Network = Any  # a `Denoiser`, or what stands in its place for a pack: it is known by its members

# Model option of a sampling run: its `SamplingRun`.
SAMPLING_RUN = "sampling_run"

# Transformer options of an evaluation that is a part of a whole step (`whole_steps.py`).
KNOWN_TIMESTEP = "known_timestep"  # its timestep [B], looked up before
RECORDING_STEP = "recording_step"  # true: what it computes may be captured with the rest of the step

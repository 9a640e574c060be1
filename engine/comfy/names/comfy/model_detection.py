"""`comfy.model_detection`: where a file has its denoising network."""

from __future__ import annotations

from collections.abc import Iterable

PREFIXES = ("model.diffusion_model.", "model.model.", "net.")
OTHER_PREFIX = "model."
FEWEST_NAMES = 6  # with a prefix, for it to be the network's


def unet_prefix_from_state_dict(state_dict: Iterable[str]) -> str:
    """Return the prefix of the names of the denoising network among those of a file's tensors."""
    names = list(state_dict)
    if any(name.startswith("detector.") for name in names) and any(name.startswith("tracker.") for name in names):
        return ""  # SAM 3 has two networks side by side
    counts = {prefix: sum(name.startswith(prefix) for name in names) for prefix in PREFIXES}
    most = max(PREFIXES, key=counts.__getitem__)
    return most if counts[most] >= FEWEST_NAMES else OTHER_PREFIX

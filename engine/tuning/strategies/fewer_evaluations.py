"""Drafts with less computation: steps that are skipped, and tokens that are merged.

Steps: the rule of EasyCache (Zhou et al. 2025, arXiv 2507.02860) applied to the guided prediction, as ComfyUI's
LazyCache does. Tokens: Bolya and Hoffman 2023 (ToMe SD, arXiv 2303.17604).
"""

from __future__ import annotations

from darkroom.engine.diffusion import step_cache as caching
from darkroom.engine.diffusion.options import Options
from darkroom.engine.diffusion.wrappers import OUTER_SAMPLE, PREDICT_NOISE
from darkroom.engine.layers.token_merging import TokenMerging
from darkroom.engine.layers.unet import UnetModel
from darkroom.engine.tuning.quality import Quality
from darkroom.engine.tuning.strategy import SamplingUse, Strategy, custom_code

THRESHOLD = 0.1
FIRST_PERCENT, LAST_PERCENT = 0.15, 0.95
MERGED_SHARE = 0.3


class StepCache(Strategy):
    """Steps that are skipped where little would change."""

    name = "step_cache"
    quality = Quality.DRAFT
    about = "steps in which the prediction would change little are not evaluated"

    def unfit(self, use: SamplingUse) -> str | None:
        if caching.KEY in use.options.get("transformer_options", {}):
            return "a node caches steps already"
        return None

    def options(self, use: SamplingUse) -> Options:
        settings = caching.CacheSettings("LazyCache", THRESHOLD, FIRST_PERCENT, LAST_PERCENT, False)
        wrappers = {
            OUTER_SAMPLE: {"tuning": [caching.wrap_run]},
            PREDICT_NOISE: {"tuning": [caching.wrap_prediction]},
        }
        return {"transformer_options": {caching.KEY: settings, "wrappers": wrappers}}


class MergedTokens(Strategy):
    """Similar tokens of self-attention merged."""

    name = "token_merging"
    quality = Quality.DRAFT
    about = "similar tokens of self-attention at full size are merged"

    def unfit(self, use: SamplingUse) -> str | None:
        if not isinstance(use.network, UnetModel):
            return "the network has no self-attention of this kind"
        return custom_code(use)

    def options(self, use: SamplingUse) -> Options:
        tokens = TokenMerging(MERGED_SHARE)
        patches = {"attn1_patch": [tokens.merge], "attn1_output_patch": [tokens.unmerge]}
        return {"transformer_options": {"patches": patches}}

"""Functions that nodes put into sampling, stored in a value's `model_options`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

Function = Callable[..., Any]


class SamplingOptions:
    """Mixin of `ModulePatcher` with the setters of `model_options`. Names and meaning are ComfyUI's."""

    model_options: dict[str, Any]

    def set_model_sampler_cfg_function(
        self, sampler_cfg_function: Function, disable_cfg1_optimization: bool = False
    ) -> None:
        """Replace classifier-free guidance. A function of three arguments is called (cond, uncond, scale)."""
        function = sampler_cfg_function
        if len(inspect.signature(sampler_cfg_function).parameters) == 3:

            def function(args: Mapping[str, Any]) -> Any:
                return sampler_cfg_function(args["cond"], args["uncond"], args["cond_scale"])

        self.model_options["sampler_cfg_function"] = function
        if disable_cfg1_optimization:
            self.model_options["disable_cfg1_optimization"] = True

    def set_model_sampler_post_cfg_function(
        self, post_cfg_function: Function, disable_cfg1_optimization: bool = False
    ) -> None:
        self._append_option("sampler_post_cfg_function", post_cfg_function, disable_cfg1_optimization)

    def set_model_sampler_pre_cfg_function(
        self, pre_cfg_function: Function, disable_cfg1_optimization: bool = False
    ) -> None:
        self._append_option("sampler_pre_cfg_function", pre_cfg_function, disable_cfg1_optimization)

    def set_model_sampler_calc_cond_batch_function(self, sampler_calc_cond_batch_function: Function) -> None:
        self.model_options["sampler_calc_cond_batch_function"] = sampler_calc_cond_batch_function

    def set_model_unet_function_wrapper(self, unet_wrapper_function: Function) -> None:
        self.model_options["model_function_wrapper"] = unet_wrapper_function

    def set_model_denoise_mask_function(self, denoise_mask_function: Function) -> None:
        self.model_options["denoise_mask_function"] = denoise_mask_function

    def disable_model_cfg1_optimization(self) -> None:
        """Compute both sides of the guidance also where its scale is 1."""
        self.model_options["disable_cfg1_optimization"] = True

    def set_model_middle_block_after_patch(self, patch: object) -> None:
        self.set_model_patch(patch, "middle_block_after_patch")

    def set_model_patch(self, patch: object, name: str) -> None:
        patches = self.model_options["transformer_options"].setdefault("patches", {})
        patches[name] = [*patches.get(name, []), patch]

    def set_model_patch_replace(
        self, patch: object, name: str, block_name: str, number: int, transformer_index: int | None = None
    ) -> None:
        block = (block_name, number) if transformer_index is None else (block_name, number, transformer_index)
        options = dict(self.model_options["transformer_options"])
        replaced = dict(options.get("patches_replace", {}))
        replaced[name] = {**replaced.get(name, {}), block: patch}
        options["patches_replace"] = replaced
        self.model_options["transformer_options"] = options

    def set_model_attn1_patch(self, patch: object) -> None:
        self.set_model_patch(patch, "attn1_patch")

    def set_model_attn2_patch(self, patch: object) -> None:
        self.set_model_patch(patch, "attn2_patch")

    def set_model_attn1_replace(
        self, patch: object, block_name: str, number: int, transformer_index: int | None = None
    ) -> None:
        self.set_model_patch_replace(patch, "attn1", block_name, number, transformer_index)

    def set_model_attn2_replace(
        self, patch: object, block_name: str, number: int, transformer_index: int | None = None
    ) -> None:
        self.set_model_patch_replace(patch, "attn2", block_name, number, transformer_index)

    def set_model_attn1_output_patch(self, patch: object) -> None:
        self.set_model_patch(patch, "attn1_output_patch")

    def set_model_attn2_output_patch(self, patch: object) -> None:
        self.set_model_patch(patch, "attn2_output_patch")

    def set_model_input_block_patch(self, patch: object) -> None:
        self.set_model_patch(patch, "input_block_patch")

    def set_model_input_block_patch_after_skip(self, patch: object) -> None:
        self.set_model_patch(patch, "input_block_patch_after_skip")

    def set_model_output_block_patch(self, patch: object) -> None:
        self.set_model_patch(patch, "output_block_patch")

    def set_model_emb_patch(self, patch: object) -> None:
        self.set_model_patch(patch, "emb_patch")

    def set_model_forward_timestep_embed_patch(self, patch: object) -> None:
        self.set_model_patch(patch, "forward_timestep_embed_patch")

    def set_model_noise_refiner_patch(self, patch: object) -> None:
        self.set_model_patch(patch, "noise_refiner")

    def set_model_double_block_patch(self, patch: object) -> None:
        self.set_model_patch(patch, "double_block")

    def set_model_post_input_patch(self, patch: object) -> None:
        self.set_model_patch(patch, "post_input")

    def _append_option(self, name: str, function: Function, disable_cfg1_optimization: bool) -> None:
        self.model_options[name] = [*self.model_options.get(name, []), function]
        if disable_cfg1_optimization:
            self.model_options["disable_cfg1_optimization"] = True

"""CONTROL_NET of a Control-LoRA file: a ControlNet that is made beside the UNet when sampling begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from darkroom.engine.layers.unet import UnetConfig
from darkroom.engine.models.kinds.controlnet_value import ControlBase, ControlNet
from darkroom.engine.models.kinds.load_control_lora import build_control_lora
from darkroom.engine.models.patching.module_patcher import ModulePatcher
from darkroom.engine.models.weight_handle import Network

UNET_PREFIX = "diffusion_model."


class ControlLora(ControlNet):
    """Control-LoRA with ComfyUI's members. `control_weights` are the tensors of its file.

    Its network is that of the UNet in use, patches included, plus the differences in the file. It lasts for one
    sampling.
    """

    def __init__(
        self,
        control_weights: Mapping[str, torch.Tensor],
        global_average_pooling: bool = False,
        model_options: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(None, global_average_pooling)
        self.control_weights = control_weights

    def copy(self) -> ControlLora:
        """Return a copy with the same weights, without the chain and the state of sampling."""
        other = ControlLora(self.control_weights, self.global_average_pooling)
        self.copy_to(other)
        return other

    def pre_run(self, model: Network, percent_to_timestep_function: Callable[[float], float]) -> None:
        """Make the network. Raises ValueError where the file does not fit the model."""
        super().pre_run(model, percent_to_timestep_function)
        patcher, config = model.current_patcher, getattr(model.diffusion_model, "config", None)
        if not isinstance(config, UnetConfig):
            family = model.model_config.family.label
            raise ValueError(
                f"Control-LoRA: its model has to be a UNet; got {family}, expected the UNet it was made for"
            )

        def base_weight(name: str) -> torch.Tensor:
            weight: torch.Tensor = patcher.weights.current_weight(UNET_PREFIX + name)
            return weight

        self.manual_cast_dtype = model.manual_cast_dtype
        self.control_model = build_control_lora(
            self.control_weights, config, base_weight, model.compute_dtype, patcher.load_device
        )

    def cleanup(self) -> None:
        self.control_model = None
        super().cleanup()

    def get_models(self) -> list[ModulePatcher]:
        return ControlBase.get_models(self)

    def inference_memory_requirements(self, dtype: torch.dtype) -> int:
        """Return the bytes of the network, whose layers are at most of the file's shapes, and of the chain."""
        num_bytes = torch.empty((), dtype=dtype).element_size()
        own = sum(_layer_size(name, tensor, self.control_weights) for name, tensor in self.control_weights.items())
        return own * num_bytes + super().inference_memory_requirements(dtype)


def _layer_size(name: str, tensor: torch.Tensor, weights: Mapping[str, torch.Tensor]) -> int:
    """Return the elements of the weight that a tensor gives: of a difference of low rank, the whole product."""
    if name.endswith(".up"):
        return tensor.shape[0] * weights[f"{name.removesuffix('.up')}.down"][0].numel()
    return 0 if name.endswith(".down") else tensor.numel()

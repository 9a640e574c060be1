"""MODEL: a denoising network with everything nodes hang on it. Clones share the weights; each has its own options."""

from __future__ import annotations

import copy
import inspect
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch

from engine.cancel import check_cancelled
from engine.values.borrowed_weight import BorrowedWeight
from engine.values.model_hooks import HookedModel

CALL_ON_CLONE = "on_clone"
CALL_ON_PRE_RUN = "on_pre_run"
CALL_ON_CLEANUP = "on_cleanup"

# One patch of one weight: its strength, the patch, the weight's strength, offset (dim, start, length), function
WeightPatch = tuple[float, Any, float, Any, Any]


class WeightHandle(Protocol):
    """The pool's handle of one network: the only way to its weights."""

    @property
    def module(self) -> torch.nn.Module: ...

    @property
    def load_device(self) -> str: ...

    @property
    def offload_device(self) -> str: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def loaded_bytes(self) -> int: ...

    def in_use(
        self,
        *,
        working_bytes: int = 0,
        patches: Mapping[str, Sequence[WeightPatch]] | None = None,
        patches_id: object = None,
        together_with: Sequence[Any] = (),
        compute_dtype: torch.dtype | None = None,
    ) -> AbstractContextManager[torch.nn.Module]:
        """While open, the network (patched so) and the others can run on their device.

        `compute_dtype` is what the weights are cast to while they compute, None what the network was made for.
        """
        ...

    def prepare(
        self,
        *,
        patches: Mapping[str, Sequence[WeightPatch]] | None = None,
        patches_id: object = None,
        compute_dtype: torch.dtype | None = None,
    ) -> None:
        """For a network that another's `in_use` brings along: what it is to carry then."""
        ...

    def patch_hooks(
        self, patches: Mapping[str, Sequence[WeightPatch]], hooks_id: object, *, keep: bool = False
    ) -> None:
        """While in use: carry these patches on top of the others, instead of those of the last call."""
        ...

    def original_weight(self, key: str) -> torch.Tensor: ...

    def current_weight(self, key: str) -> torch.Tensor:
        """With the patches of now, wherever it is."""
        ...

    def free_bytes(self) -> float: ...

    @property
    def ram_bytes(self) -> int:
        """Bytes of the weights that are in the machine's memory now."""
        ...

    @property
    def memory_savings(self) -> Any:
        """How sparingly the node in hand has to run: `tiles`, `attention_slices`."""
        ...

    def begin_work(self, working_bytes: int) -> None:
        """While in use: what computes from here on takes so much memory besides weights."""
        ...

    def note_split(self) -> None:
        """Tell that a batch was divided for want of memory."""
        ...

    def keep(self) -> None:
        """Let this model leave its device last, and never because nothing runs."""
        ...


class Injection(Protocol):
    """ComfyUI's `PatcherInjection`."""

    @property
    def inject(self) -> Callable[[Any], None]: ...

    @property
    def eject(self) -> Callable[[Any], None]: ...


class Model(HookedModel):
    """MODEL in ComfyUI's terms (its `ModelPatcher`), over a residency handle instead of a module of its own."""

    def __init__(self, weights: WeightHandle) -> None:
        super().__init__()
        self.weights: WeightHandle = weights
        self.patches: dict[str, list[WeightPatch]] = {}
        self.patches_uuid: object = uuid.uuid4()
        self.object_patches: dict[str, Any] = {}
        self.object_patches_backup: dict[str, Any] = {}
        self.model_options: dict[str, Any] = {"transformer_options": {}}
        self.parent: Model | None = None
        self.batch_sizes: dict[Any, int] = {}  # decided by `guidance` for the use in hand
        self.attachments: dict[str, Any] = {}
        self.additional_models: dict[str, list[Model]] = {}
        self.injections: dict[str, list[Injection]] = {}
        self.callbacks: dict[str, dict[str | None, list[Callable[..., Any]]]] = {}
        self.wrappers: dict[str, dict[str | None, list[Callable[..., Any]]]] = {}

    # --- what it is ----------------------------------------------------------------------------------------------

    @property
    def model(self) -> Any:
        """The network itself (`engine/diffusion/denoiser.py::Denoiser`)."""
        return self.weights.module

    @property
    def load_device(self) -> torch.device:
        return torch.device(self.weights.load_device)

    @property
    def offload_device(self) -> torch.device:
        return torch.device(self.weights.offload_device)

    @property
    def size(self) -> int:
        return self.weights.size_bytes

    def model_size(self) -> int:
        """Bytes of all weights."""
        return self.weights.size_bytes

    def get_ram_usage(self) -> int:
        """Bytes of the weights that are in the machine's memory now; pages of a mapped file do not count."""
        return self.weights.ram_bytes

    def loaded_size(self) -> int:
        """Bytes of the weights that are on `load_device` now."""
        return self.weights.loaded_bytes

    def model_dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.model.get_dtype()
        return dtype

    def current_loaded_device(self) -> torch.device:
        return self.load_device if self.loaded_size() else self.offload_device

    def memory_required(self, input_shape: Sequence[int]) -> float:
        """Bytes of working memory for an input of that shape."""
        required: float = self.model.memory_required(input_shape)
        return required

    def free_bytes(self) -> float:
        """Bytes free on `load_device` now."""
        return self.weights.free_bytes()

    @property
    def memory_savings(self) -> Any:
        """How sparingly the node in hand has to run: `tiles`, `attention_slices`."""
        return self.weights.memory_savings

    def begin_batch(self, shape: Sequence[int], *, is_split: bool) -> None:
        """While in use: the network is about to compute on a batch of that shape, half of it by the attention.

        `is_split`: there was too little memory for all that could have been computed in one batch.
        """
        num_bytes = self.memory_required(shape)
        self.weights.begin_work(int(num_bytes * (0.5 + 0.5 / self.memory_savings.attention_slices)))
        if is_split:
            self.weights.note_split()

    # --- copies --------------------------------------------------------------------------------------------------

    def clone(self) -> Model:
        other = self.__class__.__new__(self.__class__)
        Model.__init__(other, self.weights)
        other.patches = {key: list(entries) for key, entries in self.patches.items()}
        other.patches_uuid = self.patches_uuid
        other.object_patches = dict(self.object_patches)
        other.object_patches_backup = self.object_patches_backup
        other.model_options = copy.deepcopy(self.model_options)
        self.copy_hooks_to(other)
        other.parent = self
        other.attachments = {
            key: value.on_model_patcher_clone() if hasattr(value, "on_model_patcher_clone") else value
            for key, value in self.attachments.items()
        }
        other.additional_models = {
            key: [model.clone() for model in models] for key, models in self.additional_models.items()
        }
        other.injections = {key: list(injections) for key, injections in self.injections.items()}
        other.callbacks = _copy_registry(self.callbacks)
        other.wrappers = _copy_registry(self.wrappers)
        for callback in self.get_all_callbacks(CALL_ON_CLONE):
            callback(self, other)
        return other

    def is_clone(self, other: Any) -> bool:
        """Whether both use the same weights."""
        return getattr(other, "model", None) is self.model

    def clone_has_same_weights(self, clone: Any) -> bool:
        return self.is_clone(clone) and (
            (not self.patches and not clone.patches) or self.patches_uuid == clone.patches_uuid
        )

    # --- functions put into sampling -----------------------------------------------------------------------------

    def set_model_sampler_cfg_function(
        self, sampler_cfg_function: Callable[..., Any], disable_cfg1_optimization: bool = False
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
        self, post_cfg_function: Callable[..., Any], disable_cfg1_optimization: bool = False
    ) -> None:
        self._append_option("sampler_post_cfg_function", post_cfg_function, disable_cfg1_optimization)

    def set_model_sampler_pre_cfg_function(
        self, pre_cfg_function: Callable[..., Any], disable_cfg1_optimization: bool = False
    ) -> None:
        self._append_option("sampler_pre_cfg_function", pre_cfg_function, disable_cfg1_optimization)

    def set_model_sampler_calc_cond_batch_function(self, sampler_calc_cond_batch_function: Callable[..., Any]) -> None:
        self.model_options["sampler_calc_cond_batch_function"] = sampler_calc_cond_batch_function

    def set_model_unet_function_wrapper(self, unet_wrapper_function: Callable[..., Any]) -> None:
        self.model_options["model_function_wrapper"] = unet_wrapper_function

    def set_model_denoise_mask_function(self, denoise_mask_function: Callable[..., Any]) -> None:
        self.model_options["denoise_mask_function"] = denoise_mask_function

    def set_model_patch(self, patch: Any, name: str) -> None:
        patches = self.model_options["transformer_options"].setdefault("patches", {})
        patches[name] = [*patches.get(name, []), patch]

    def set_model_patch_replace(
        self, patch: Any, name: str, block_name: str, number: int, transformer_index: int | None = None
    ) -> None:
        block = (block_name, number) if transformer_index is None else (block_name, number, transformer_index)
        options = dict(self.model_options["transformer_options"])
        replaced = dict(options.get("patches_replace", {}))
        replaced[name] = {**replaced.get(name, {}), block: patch}
        options["patches_replace"] = replaced
        self.model_options["transformer_options"] = options

    def set_model_attn1_patch(self, patch: Any) -> None:
        self.set_model_patch(patch, "attn1_patch")

    def set_model_attn2_patch(self, patch: Any) -> None:
        self.set_model_patch(patch, "attn2_patch")

    def set_model_attn1_replace(
        self, patch: Any, block_name: str, number: int, transformer_index: int | None = None
    ) -> None:
        self.set_model_patch_replace(patch, "attn1", block_name, number, transformer_index)

    def set_model_attn2_replace(
        self, patch: Any, block_name: str, number: int, transformer_index: int | None = None
    ) -> None:
        self.set_model_patch_replace(patch, "attn2", block_name, number, transformer_index)

    def set_model_attn1_output_patch(self, patch: Any) -> None:
        self.set_model_patch(patch, "attn1_output_patch")

    def set_model_attn2_output_patch(self, patch: Any) -> None:
        self.set_model_patch(patch, "attn2_output_patch")

    def set_model_input_block_patch(self, patch: Any) -> None:
        self.set_model_patch(patch, "input_block_patch")

    def set_model_input_block_patch_after_skip(self, patch: Any) -> None:
        self.set_model_patch(patch, "input_block_patch_after_skip")

    def set_model_output_block_patch(self, patch: Any) -> None:
        self.set_model_patch(patch, "output_block_patch")

    def set_model_emb_patch(self, patch: Any) -> None:
        self.set_model_patch(patch, "emb_patch")

    def set_model_forward_timestep_embed_patch(self, patch: Any) -> None:
        self.set_model_patch(patch, "forward_timestep_embed_patch")

    def set_model_double_block_patch(self, patch: Any) -> None:
        self.set_model_patch(patch, "double_block")

    def set_model_post_input_patch(self, patch: Any) -> None:
        self.set_model_patch(patch, "post_input")

    def _append_option(self, name: str, function: Callable[..., Any], disable_cfg1_optimization: bool) -> None:
        self.model_options[name] = [*self.model_options.get(name, []), function]
        if disable_cfg1_optimization:
            self.model_options["disable_cfg1_optimization"] = True

    # --- parts of the network replaced, for this clone only --------------------------------------------------------

    def add_object_patch(self, name: str, obj: Any) -> None:
        """Put `obj` in the place of the attribute `name` (dotted) of the network while this clone samples."""
        self.object_patches[name] = obj

    def get_model_object(self, name: str) -> Any:
        """The attribute `name` (dotted) of the network, as this clone sees it. Raises AttributeError."""
        if name in self.object_patches:
            return self.object_patches[name]
        if name in self.object_patches_backup:
            return self.object_patches_backup[name]
        return _attribute(self.model, name)

    def set_model_compute_dtype(self, dtype: torch.dtype | None) -> None:
        """Compute in that type while this clone samples; None: in the type of the weights."""
        self.add_object_patch("manual_cast_dtype", dtype)

    # --- weights ---------------------------------------------------------------------------------------------------

    def add_patches(
        self, patches: Mapping[Any, Any], strength_patch: float = 1.0, strength_model: float = 1.0
    ) -> list[Any]:
        """Patch weights while this clone is in use. Keys are weight names or (name, offset[, function]).

        Returns the keys that name a weight of this network; the others are left out.
        """
        known = self.model.state_dict().keys()
        taken = []
        for entry, patch in patches.items():
            key, offset, function = entry if isinstance(entry, str) else entry[0], None, None
            if not isinstance(entry, str):
                offset = entry[1]
                function = entry[2] if len(entry) > 2 else None
            if key in known:
                taken.append(entry)
                self.patches.setdefault(key, []).append((strength_patch, patch, strength_model, offset, function))
        self.patches_uuid = uuid.uuid4()
        return taken

    def get_key_patches(self, filter_prefix: str | None = None) -> dict[str, list[Any]]:
        """Weight name to `[(unpatched weight, conversion), patch, ...]`, as model merging reads it."""
        return {
            key: [(self.weights.original_weight(key), _unchanged), *self.patches.get(key, [])]
            for key in self._weight_names(filter_prefix)
        }

    def get_borrowed_patches(self, filter_prefix: str | None = None) -> dict[str, list[Any]]:
        """As `get_key_patches`, without holding the weights themselves: only for patches of another model."""
        return {
            key: [(BorrowedWeight(self.weights, key), _unchanged), *self.patches.get(key, [])]
            for key in self._weight_names(filter_prefix)
        }

    def _weight_names(self, filter_prefix: str | None) -> list[str]:
        return [key for key in self.model.state_dict() if filter_prefix is None or key.startswith(filter_prefix)]

    def model_state_dict(self, filter_prefix: str | None = None) -> dict[str, torch.Tensor]:
        weights = {
            key: value
            for key, value in self.model.state_dict().items()
            if filter_prefix is None or key.startswith(filter_prefix)
        }
        # What is neither on the device nor in RAM now is read.
        return {key: self.weights.original_weight(key) if value.is_meta else value for key, value in weights.items()}

    @contextmanager
    def in_use(self, *, working_bytes: int = 0, together_with: Sequence[Model] = ()) -> Iterator[Any]:
        """While open: weights on `load_device` with this clone's patches, and its object patches in place."""
        others = [model.weights for model in together_with]
        for model in together_with:
            if model.weights is not self.weights:
                model.weights.prepare(
                    patches=model.patches,
                    patches_id=model.patches_uuid,
                    compute_dtype=model.object_patches.get("manual_cast_dtype"),
                )
        handle = self.weights.in_use(
            working_bytes=working_bytes,
            patches=self.patches,
            patches_id=self.patches_uuid,
            together_with=others,
            compute_dtype=self.object_patches.get("manual_cast_dtype"),
        )
        with handle as network, self._objects_replaced(network):
            owner: Any = network
            previous = getattr(owner, "current_patcher", None)
            self.batch_sizes.clear()
            owner.current_patcher = self
            try:
                yield owner
            finally:
                owner.current_patcher = previous

    @contextmanager
    def _objects_replaced(self, network: Any) -> Iterator[None]:
        try:
            for name, replacement in self.object_patches.items():
                self.object_patches_backup[name] = _set_attribute(network, name, replacement)
            yield
        finally:
            for name in list(self.object_patches_backup):
                _set_attribute(network, name, self.object_patches_backup.pop(name))

    # --- registries for custom nodes -------------------------------------------------------------------------------

    def add_callback(self, call_type: str, callback: Callable[..., Any]) -> None:
        self.add_callback_with_key(call_type, None, callback)

    def add_callback_with_key(self, call_type: str, key: str | None, callback: Callable[..., Any]) -> None:
        self.callbacks.setdefault(call_type, {}).setdefault(key, []).append(callback)

    def remove_callbacks_with_key(self, call_type: str, key: str | None) -> None:
        self.callbacks.get(call_type, {}).pop(key, None)

    def get_callbacks(self, call_type: str, key: str | None) -> list[Callable[..., Any]]:
        return self.callbacks.get(call_type, {}).get(key, [])

    def get_all_callbacks(self, call_type: str) -> list[Callable[..., Any]]:
        return [callback for entries in self.callbacks.get(call_type, {}).values() for callback in entries]

    def add_wrapper(self, wrapper_type: str, wrapper: Callable[..., Any]) -> None:
        self.add_wrapper_with_key(wrapper_type, None, wrapper)

    def add_wrapper_with_key(self, wrapper_type: str, key: str | None, wrapper: Callable[..., Any]) -> None:
        self.wrappers.setdefault(wrapper_type, {}).setdefault(key, []).append(wrapper)

    def remove_wrappers_with_key(self, wrapper_type: str, key: str | None) -> None:
        self.wrappers.get(wrapper_type, {}).pop(key, None)

    def get_wrappers(self, wrapper_type: str, key: str | None) -> list[Callable[..., Any]]:
        return self.wrappers.get(wrapper_type, {}).get(key, [])

    def get_all_wrappers(self, wrapper_type: str) -> list[Callable[..., Any]]:
        return [wrapper for entries in self.wrappers.get(wrapper_type, {}).values() for wrapper in entries]

    def set_attachments(self, key: str, attachment: Any) -> None:
        self.attachments[key] = attachment

    def remove_attachments(self, key: str) -> None:
        self.attachments.pop(key, None)

    def get_attachment(self, key: str) -> Any:
        return self.attachments.get(key)

    def set_additional_models(self, key: str, models: list[Model]) -> None:
        """Models that have to be on the device whenever this one is."""
        self.additional_models[key] = models

    def remove_additional_models(self, key: str) -> None:
        self.additional_models.pop(key, None)

    def get_additional_models_with_key(self, key: str) -> list[Model]:
        return self.additional_models.get(key, [])

    def get_additional_models(self) -> list[Model]:
        return [model for models in self.additional_models.values() for model in models]

    def get_nested_additional_models(self) -> list[Model]:
        """Additional models, theirs, and so on; each once, this one left out."""
        found: list[Model] = []
        waiting = self.get_additional_models()
        while waiting:
            model = waiting.pop(0)
            if model is not self and model not in found:
                found.append(model)
                waiting.extend(model.get_additional_models())
        return found

    def check_cancelled(self) -> None:
        """Raise `Interrupted` when the node that samples is to stop."""
        check_cancelled()

    def set_injections(self, key: str, injections: list[Injection]) -> None:
        """What is done to the network before this clone samples and undone afterwards."""
        self.injections[key] = injections

    def get_injections(self, key: str) -> list[Injection] | None:
        return self.injections.get(key)

    def remove_injections(self, key: str) -> None:
        self.injections.pop(key, None)

    def pre_run(self) -> None:
        for injections in self.injections.values():
            for injection in injections:
                injection.inject(self)
        for callback in self.get_all_callbacks(CALL_ON_PRE_RUN):
            callback(self)

    def cleanup(self) -> None:
        for injections in self.injections.values():
            for injection in injections:
                injection.eject(self)
        for callback in self.get_all_callbacks(CALL_ON_CLEANUP):
            callback(self)


def _copy_registry(
    registry: Mapping[str, Mapping[str | None, Sequence[Callable[..., Any]]]],
) -> dict[str, dict[str | None, list[Callable[..., Any]]]]:
    return {kind: {key: list(items) for key, items in by_key.items()} for kind, by_key in registry.items()}


def _attribute(owner: Any, dotted: str) -> Any:
    for name in dotted.split("."):
        owner = getattr(owner, name)
    return owner


def _set_attribute(owner: Any, dotted: str, value: Any) -> Any:
    """Set it and return what was there."""
    *path, name = dotted.split(".")
    for part in path:
        owner = getattr(owner, part)
    previous = getattr(owner, name)
    if isinstance(owner, torch.nn.Module) and name in owner._modules:
        delattr(owner, name)  # a module's slot takes only modules
    setattr(owner, name, value)
    return previous


def _unchanged(weight: torch.Tensor, **_: Any) -> torch.Tensor:
    return weight

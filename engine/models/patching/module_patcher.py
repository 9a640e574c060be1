"""A network as a value that flows between nodes: its weights, their patches, and loading. Clones share the weights."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Self

import torch

from darkroom.engine.models.patching.borrowed_weight import BorrowedWeight
from darkroom.engine.models.patching.hooked_weights import HookedWeights
from darkroom.engine.models.patching.patched_weights import PatchedWeights
from darkroom.engine.models.patching.patcher_registries import CALL_ON_CLONE, CALL_ON_LOAD, PatcherRegistries
from darkroom.engine.models.patching.sampling_options import SamplingOptions
from darkroom.engine.models.patching.weight_moves import WeightMoves
from darkroom.engine.models.weight_handle import Network, WeightHandle, WeightPatch

NO_PATCHES = uuid.UUID(int=0)


def is_fixed(network: torch.nn.Module, key: str) -> bool:
    """Return True for a tensor beside a module's own layers (a table of places, learned tokens).

    No patch changes it: ComfyUI patches the weights of modules without further layers alone.
    """
    try:
        owner = network.get_submodule(key.rpartition(".")[0])
    except AttributeError:  # a pack's patch of no weight
        return False
    return any(child.state_dict() for child in owner.children())


class ModulePatcher(PatcherRegistries, HookedWeights, SamplingOptions, WeightMoves, PatchedWeights):
    """A network with ComfyUI's members (its `ModelPatcher`), over a residency handle instead of a module of its own.

    MODEL derives from it; CLIP, VAE, CONTROL_NET, CLIP_VISION, STYLE_MODEL and UPSCALE_MODEL hold one as `patcher`.
    """

    def __init__(self, weights: WeightHandle) -> None:
        self.set_up(weights)

    def set_up(self, weights: WeightHandle) -> None:
        """Initialise the value. Clones call this instead of `__init__`, which packs' subclasses change."""
        self.set_up_hooks()
        self.set_up_registries()
        self.set_up_moves()
        self.set_up_patched_weights()
        self.weights: WeightHandle = weights
        self.patches: dict[str, list[WeightPatch]] = {}
        self.patches_uuid: object = uuid.uuid4()
        self.object_patches: dict[str, Any] = {}
        self.object_patches_backup: dict[str, Any] = {}
        self.model_options: dict[str, Any] = {"transformer_options": {}}
        self.parent: ModulePatcher | None = None

    # --- what it is ----------------------------------------------------------------------------------------------

    @property
    def model(self) -> Network:
        """The network itself."""
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
        """Return the bytes of all weights."""
        return self.weights.size_bytes

    def get_ram_usage(self) -> int:
        """Return the bytes of the weights that are in RAM now, without pages of a mapped file."""
        return self.weights.ram_bytes

    def loaded_size(self) -> int:
        """Return the bytes of the weights that are on `load_device` now."""
        return self.weights.loaded_bytes

    def current_loaded_device(self) -> torch.device:
        return self.load_device if self.loaded_size() else self.offload_device

    def free_bytes(self) -> float:
        """Return the bytes that are free on `load_device` now."""
        return self.weights.free_bytes()

    @property
    def memory_savings(self) -> Any:
        """Memory savings of the running node: `tiles`, `attention_slices`."""
        return self.weights.memory_savings

    # --- copies --------------------------------------------------------------------------------------------------

    def clone(self) -> Self:
        other = self.__class__.__new__(self.__class__)
        other.set_up(self.weights)
        other.patches = {key: list(entries) for key, entries in self.patches.items()}
        other.patches_uuid = self.patches_uuid
        other.object_patches = dict(self.object_patches)
        other.object_patches_backup = self.object_patches_backup
        other.model_options = copy.deepcopy(self.model_options)
        self.copy_hooks_to(other)
        self.copy_wrappers_to(other)
        other.parent = self
        self.copy_registries_to(other)
        for callback in self.get_all_callbacks(CALL_ON_CLONE):
            callback(self, other)
        return other

    def is_clone(self, other: object) -> bool:
        """Return True if both use the same weights."""
        return getattr(other, "model", None) is self.model

    def clone_has_same_weights(self, clone: Any) -> bool:
        return self.is_clone(clone) and (
            (not self.patches and not clone.patches) or self.patches_uuid == clone.patches_uuid
        )

    # --- parts of the network replaced, for this clone only --------------------------------------------------------

    def add_object_patch(self, name: str, obj: object) -> None:
        """Put `obj` in the place of the attribute `name` (dotted) of the network while this clone samples."""
        self.object_patches[name] = obj

    def get_model_object(self, name: str) -> Any:
        """Return the attribute `name` (dotted) of the network with this clone's changes. Raises AttributeError."""
        if name in self.object_patches:
            return self.object_patches[name]
        if name in self.object_patches_backup:
            return self.object_patches_backup[name]
        return _attribute(self.model, name)

    def set_model_compute_dtype(self, dtype: torch.dtype | None) -> None:
        """Compute in that type while this clone samples, or in the type of the weights for None."""
        self.add_object_patch("manual_cast_dtype", dtype)

    # --- weights ---------------------------------------------------------------------------------------------------

    def add_patches(
        self,
        patches: Mapping[Any, Any],
        strength_patch: float = 1.0,
        strength_model: float = 1.0,
        source: Hashable = None,
    ) -> list[Any]:
        """Patch weights while this clone is in use. Keys are weight names or (name, offset[, function]).

        Returns the keys that name a weight of this network; the others are left out. Weights of modules that have
        further layers are returned but stay as they are, as in ComfyUI: tables of places, register tokens.

        `source` identifies the content of the patches, whoever reads them: patches of the same sources and strengths,
        in the same order, have the same `patches_uuid`. None for patches that nobody else can have.
        """
        before = self.patches_uuid if self.patches else NO_PATCHES
        known = self.model.state_dict().keys()
        taken = []
        for entry, patch in patches.items():
            key, offset, function = entry if isinstance(entry, str) else entry[0], None, None
            if not isinstance(entry, str):
                offset = entry[1]
                function = entry[2] if len(entry) > 2 else None
            if key in known:
                taken.append(entry)
                if not is_fixed(self.model, key):
                    self.patches.setdefault(key, []).append((strength_patch, patch, strength_model, offset, function))
        self.patches_uuid = self._uuid_after(before, source, strength_patch, strength_model)
        return taken

    def _uuid_after(self, before: object, source: Hashable, *strengths: float) -> uuid.UUID:
        entry_id = getattr(self.weights, "entry_id", None)
        if source is None or entry_id is None or not isinstance(before, uuid.UUID):
            return uuid.uuid4()
        return uuid.uuid5(before, repr((entry_id, source, strengths)))

    def patches_of_layers(self) -> dict[str, list[WeightPatch]]:
        """Return the patches of layers' weights, which alone are applied; those set by `patches` may be of others."""
        return {key: entries for key, entries in self.patches.items() if not is_fixed(self.model, key)}

    def get_key_patches(self, filter_prefix: str | None = None) -> dict[str, list[object]]:
        """Return `[(unpatched weight, conversion), patch, ...]` by weight name, the form that model merging reads."""
        return {
            key: [(self.weights.original_weight(key), _unchanged), *self.patches.get(key, [])]
            for key in self._weight_names(filter_prefix)
        }

    def get_borrowed_patches(self, filter_prefix: str | None = None) -> dict[str, list[Any]]:
        """Return `get_key_patches` without the weights themselves, for patches of another model."""
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
        # Weights that are neither on the device nor in RAM are read from their file.
        return {key: self.weights.original_weight(key) if value.is_meta else value for key, value in weights.items()}

    @contextmanager
    def in_use(self, *, working_bytes: int = 0, together_with: Sequence[ModulePatcher] = ()) -> Iterator[Network]:
        """Load the weights to `load_device` with this clone's patches and object patches while the context is open."""
        others = [model.weights for model in together_with]
        for model in together_with:
            if model.weights is not self.weights:
                model.weights.prepare(
                    patches=model.patches_of_layers(),
                    patches_id=model.patches_uuid,
                    compute_dtype=model.object_patches.get("manual_cast_dtype"),
                )
        use = self.weights.in_use(
            working_bytes=working_bytes,
            patches=self.patches_of_layers(),
            patches_id=self.patches_uuid,
            together_with=others,
            compute_dtype=self.object_patches.get("manual_cast_dtype"),
        )
        with use as network, ExitStack() as changes:
            for model in (*together_with, self):
                changes.enter_context(model.changes_made())
            owner: Any = network
            previous = getattr(owner, "current_patcher", None)
            owner.current_patcher = self
            try:
                yield owner
            finally:
                owner.current_patcher = previous

    @contextmanager
    def changes_made(self) -> Iterator[None]:
        """Make this clone's changes to the network besides its patches while the context is open.

        Its weights are on `load_device`, and its callbacks for that are called first.
        """
        with self._objects_replaced(self.model):
            self._call(CALL_ON_LOAD, self.load_device, 0, False, True)
            was_injected = self.is_injected
            try:
                self.inject_model()
                yield
            finally:
                if not was_injected:
                    self.eject_model()

    @contextmanager
    def _objects_replaced(self, network: object) -> Iterator[None]:
        previous: list[tuple[str, object]] = []
        own = [name for name in self.object_patches if name not in self.object_patches_backup]  # not of an outer use
        try:
            for name, replacement in self.object_patches.items():
                previous.append((name, _set_attribute(network, name, replacement)))
                self.object_patches_backup.setdefault(name, previous[-1][1])
            yield
        finally:
            for name, value in reversed(previous):
                _set_attribute(network, name, value)
            for name in own:
                self.object_patches_backup.pop(name, None)


def _attribute(owner: object, dotted: str) -> object:
    for name in dotted.split("."):
        owner = getattr(owner, name)
    return owner


def _set_attribute(owner: object, dotted: str, value: object) -> object:
    """Set an attribute and return its previous value."""
    *path, name = dotted.split(".")
    for part in path:
        owner = getattr(owner, part)
    previous = getattr(owner, name)
    if isinstance(owner, torch.nn.Module) and name in owner._modules:
        delattr(owner, name)  # a module's slot takes only modules
    setattr(owner, name, value)
    return previous


def _unchanged(weight: torch.Tensor, **_: object) -> torch.Tensor:
    return weight

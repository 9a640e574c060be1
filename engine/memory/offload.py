"""Weights of one torch module: where each of them lies, patched or not, and how it gets there.

A module is divided into blocks, one for each layer that has weights of its own. A weight's *home* is the original: a
tensor in RAM, perhaps a view of the mapped file, or nothing at all while the file can give it again. On the device lies
a copy of it, patched where patches ask for that; dropping the copy undoes them. Where a model computes on the CPU (or
never leaves its device) the home itself is what it computes with, unless it is patched.

A block that is away is brought over while its layer computes, through a lane (`lanes.py`), and patched on the way by
the same arithmetic. So is a block kept in another type than it computes in. Layers that are all there have no hooks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import nn

from engine.memory.device import Device
from engine.memory.lanes import Lane, Lanes, PinnedMemory, landing_bytes, padded
from engine.memory.plan import choose_blocks
from engine.memory.staging import RawWeight, landing_bytes_at_once, upload
from engine.memory.weight_patches import WeightPatch, patched, same_patches

# Layers that read their weights nowhere but in `forward`, so that these need to be there only then.
BROUGHT_LAYERS = (nn.Linear, nn.Conv2d, nn.GroupNorm, nn.LayerNorm, nn.Embedding)

NUM_FLOAT32_TO_PATCH = 3

Patches = Mapping[str, Sequence[WeightPatch]]


class WeightSource(Protocol):
    """Where weights can be had again: names as in the module, types, layouts and values as it was made with."""

    @property
    def names(self) -> Collection[str]: ...

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, torch.Tensor]]:
        """On the CPU, in the file's order; views of the mapped file where that holds them as they are wanted."""
        ...

    def is_view(self, name: str) -> bool:
        """Whether `read` gives it without taking memory."""
        ...

    def raw(self, names: Iterable[str]) -> Iterator[tuple[str, RawWeight]]:
        """As the file has them, in its order; not read yet."""
        ...


@dataclass(eq=False, slots=True)
class Weight:
    """One parameter or buffer. `held` is what lies on the device; `below` what hooks have patched over."""

    key: str
    owners: list[tuple[nn.Module, str]]
    home: torch.Tensor | None
    held: torch.Tensor | None = None
    below: torch.Tensor | None = None
    applied: Sequence[WeightPatch] = ()
    is_pinned: bool = False

    @property
    def shown(self) -> torch.Tensor:
        """What the module sees: of the right shape, type and layout, whatever its values."""
        owner, name = self.owners[0]
        tensor = owner._buffers[name] if name in owner._buffers else owner._parameters[name]
        assert tensor is not None
        return tensor

    def show(self, tensor: torch.Tensor | None) -> None:
        """Let the module see this one; None: shape and type alone."""
        tensor = self.shown.to("meta") if tensor is None else tensor
        for owner, name in self.owners:
            if name not in owner._parameters:
                owner._buffers[name] = tensor
            elif isinstance(tensor, nn.Parameter):
                owner._parameters[name] = tensor
            else:
                owner._parameters[name] = nn.Parameter(tensor, requires_grad=False)


@dataclass(eq=False, slots=True)
class Block:
    """The weights of one layer. `is_brought`: it can be away while others compute. `is_read`: its homes have been in
    RAM, so that views among them are no longer to be read from a disk.

    While the layer computes from a lane, `covered` is what the module saw before.
    """

    module: nn.Module
    weights: list[Weight]
    size_bytes: int
    is_brought: bool
    is_there: bool = False
    is_read: bool = False
    hooks: list[Any] = field(default_factory=list)
    lane: Lane | None = None
    covered: list[tuple[Weight, torch.Tensor]] = field(default_factory=list)


class ModuleWeights:
    """A module as the pool sees it (`model_pool.Resident`).

    `rests_in_ram`: it leaves the device when others need the room. `compute_dtype` is what its floating point weights
    are cast to while a layer computes, unless None. A module may say in `patched_dtype` to which type its patched
    weights are rounded.
    """

    def __init__(
        self,
        name: str,
        module: nn.Module,
        *,
        device: Device | None = None,
        lanes: Lanes | None = None,
        pinned: PinnedMemory | None = None,
        rests_in_ram: bool = True,
        source: WeightSource | None = None,
        compute_dtype: torch.dtype | None = None,
    ) -> None:
        self.name = name
        self.module = module
        self.device = Device() if device is None else device
        self.lanes = Lanes(self.device, 0) if lanes is None else lanes
        self.can_leave = self.device.has_own_memory and rests_in_ram
        self.working_bytes = 0  # of the use in hand, charged at each block where somebody counts
        self._working_now_bytes = 0  # the same while a layer is computing
        self._pinned = pinned
        self._source = source
        self._own_compute_dtype = self._compute_dtype = compute_dtype
        self._blocks = list(self._divide())
        self._by_key = {weight.key: weight for block in self._blocks for weight in block.weights}
        self.size_bytes = sum(block.size_bytes for block in self._blocks)
        self.fixed_bytes = sum(block.size_bytes for block in self._blocks if not block.is_brought)
        self._patches: dict[str, tuple[WeightPatch, ...]] = {}
        self._patches_id: object = None
        self._is_patched = True  # what is on the device carries them
        self._hook_patches: dict[str, Sequence[WeightPatch]] = {}
        self._hooks_id: object = None
        self._hooked: dict[object, dict[str, torch.Tensor]] = {}
        self._arrange_hooks()

    # --- figures -----------------------------------------------------------------------------------------------------

    @property
    def load_device(self) -> str:
        return self.device.torch_name

    @property
    def offload_device(self) -> str:
        return "cpu" if self.can_leave else self.device.torch_name

    @property
    def loaded_bytes(self) -> int:
        """Bytes of the blocks that are on the device now."""
        return sum(block.size_bytes for block in self._blocks if block.is_there)

    @property
    def block_bytes(self) -> int:
        """What the largest block takes while it is brought over."""
        brought = (block for block in self._blocks if block.is_brought and not self._looks_up(block))
        return max((self._buffer_bytes(block) for block in brought), default=0)

    @property
    def landing_bytes(self) -> int:
        """What it takes on the device, besides its weights, to load those that lack."""
        if not self.device.has_own_memory or all(block.is_there for block in self._blocks):
            return 0
        return self._landing_bytes

    @cached_property
    def _landing_bytes(self) -> int:
        if self._source is None:
            return 0
        raws = self._source.raw(key for key in self._by_key if self._comes_from_file(key))
        return landing_bytes_at_once(max((raw.num_bytes for key, raw in raws if self._is_changed(key, raw)), default=0))

    def _is_changed(self, key: str, raw: RawWeight) -> bool:
        shown = self._by_key[key].shown
        return raw.dtype != shown.dtype or not shown.is_contiguous()

    @property
    def patching_bytes(self) -> int:
        """What it takes on the device to patch a weight, also while a layer computes whose weights are away."""
        layers = (*self._patches, *self._hook_patches)
        return max((_patching_bytes(self._by_key[key].shown) for key in layers), default=0)

    @property
    def casts(self) -> bool:
        """Whether blocks that are there pass through the buffers all the same."""
        return self._compute_dtype is not None and any(self._is_cast(block) for block in self._blocks)

    @property
    def more_bytes(self) -> int:
        """What it takes on its device beyond its size: patched weights beside originals that never leave; hooks'."""
        if not self.device.has_own_memory:
            return 0
        beside = [weight for weight in self._by_key.values() if weight.applied and not self.can_leave]
        return sum(weight.shown.nbytes for weight in beside) + self._hooked_bytes

    @property
    def _hooked_bytes(self) -> int:
        """What hooked weights take, those in place and those remembered."""
        hooked = [weight.held for weight in self._by_key.values() if weight.below is not None]
        hooked += [
            tensor for made in list(self._hooked.values()) for tensor in made.values()
        ]  # also asked from outside
        return sum({id(tensor): tensor.nbytes for tensor in hooked if tensor is not None}.values())

    @property
    def ram_bytes(self) -> int:
        """Bytes of homes in RAM, and where it computes there, of patched weights beside them.

        Views of a mapped file do not count, nor what is only to be read again.
        """
        homes = sum(home.nbytes for _, home in self._in_ram())
        if self.device.has_own_memory:
            return homes
        return (
            homes + sum(weight.shown.nbytes for weight in self._by_key.values() if weight.applied) + self._hooked_bytes
        )

    @property
    def droppable_bytes(self) -> int:
        """What `drop` would give back."""
        return sum(home.nbytes for _, home in self._droppable())

    # --- places ------------------------------------------------------------------------------------------------------

    def load(self, room: int | None = None) -> None:
        """Bring as many blocks as `room` bytes allow (None: all), and let the others be away. Raises `OutOfMemory`."""
        movable = [block for block in self._blocks if block.is_brought]
        comes = [True] * len(movable)
        if room is not None and room < self.size_bytes:
            sizes, is_there = [block.size_bytes for block in movable], [block.is_there for block in movable]
            comes = choose_blocks(sizes, is_there, room - self.fixed_bytes)
        stay_away = [block for block, wanted in zip(movable, comes, strict=True) if not wanted]
        for block in stay_away:
            self._let_go(block)
        self.apply_patches()
        away = {id(block) for block in stay_away}
        self._hold_all([block for block in self._blocks if not block.is_there and id(block) not in away])
        self._read_homes(stay_away)
        self._pin_homes(stay_away)
        self._arrange_hooks()

    def unload(self, num_bytes: int | None = None, *, into_ram: bool = True) -> int:
        """Let at least so many bytes leave the device, small blocks first; all of them without a number.

        Without `into_ram` what the file can give again is forgotten, for `load` to read.

        Returns how many left. A model that never leaves its device only gives its patches up.
        """
        before = self.loaded_bytes
        self.undo_hooks()
        if not self.can_leave:
            if num_bytes is None:
                self.patch({}, None)
            return 0
        leaving = [block for block in self._blocks if block.is_there]
        if num_bytes is not None and num_bytes <= before - self.fixed_bytes:
            leaving = sorted((block for block in leaving if block.is_brought), key=lambda block: block.size_bytes)
        left = 0
        for block in leaving:
            if num_bytes is not None and left >= num_bytes:
                break
            self._let_go(block, into_ram=into_ram)
            left += block.size_bytes
        self._arrange_hooks()
        return left

    def drop(self) -> int:
        """Forget the homes that the file can give again; `load` reads them. Returns the bytes of RAM given back."""
        found = list(self._droppable())
        num_bytes = sum(home.nbytes for _, home in found)
        dropped = [weight for weight, _ in found]
        del found
        had_pinned = any(weight.is_pinned for weight in dropped)
        for weight in dropped:
            weight.home, weight.is_pinned = None, False
        if not self.device.has_own_memory:  # it computed with the homes themselves
            keys = {weight.key for weight in dropped}
            for block in self._blocks:
                if any(weight.key in keys for weight in block.weights):
                    block.is_there = False
                    for weight in block.weights:
                        weight.held = None
        for weight in dropped:
            if weight.held is None:
                weight.show(None)
        if had_pinned:
            self.device.empty_host_cache()
        return num_bytes

    def release(self) -> None:
        """The pool has forgotten this model: leave nothing in its layers that would hold it."""
        for block in self._blocks:
            for hook in block.hooks:
                hook.remove()
            block.hooks = []

    def set_compute_dtype(self, dtype: torch.dtype | None) -> None:
        """Compute in that type from the next call on; None: as it was made to."""
        dtype = self._own_compute_dtype if dtype is None else dtype
        if dtype != self._compute_dtype:
            self._compute_dtype = dtype
            self._arrange_hooks()

    # --- patches -----------------------------------------------------------------------------------------------------

    @property
    def patches_now(self) -> tuple[Patches, object]:
        """What `patch` was called with last."""
        return self._patches, self._patches_id

    def patch(self, patches: Patches, patches_id: object) -> None:
        """Carry exactly these patches; only weights whose patches changed are touched.

        The same id as before means that they do already.
        """
        self.want_patches(patches, patches_id)
        self.apply_patches()

    def want_patches(self, patches: Patches, patches_id: object) -> None:
        """As `patch`, but what is on the device gets them only from `apply_patches`, or from `load`."""
        self.undo_hooks()
        if patches_id is not None and patches_id == self._patches_id:
            return
        wanted = {key: tuple(entries) for key, entries in patches.items() if entries}
        unknown = wanted.keys() - self._by_key.keys()
        if unknown:
            raise KeyError(min(unknown))
        self._patches, self._patches_id, self._is_patched = wanted, patches_id, False

    def apply_patches(self) -> None:
        if self._is_patched:
            return
        try:
            for key, weight in self._by_key.items():
                if weight.held is not None and (weight.applied or key in self._patches):
                    self._bring_up_to_date(weight)
        except BaseException:
            self._undo_patches()
            raise
        self._is_patched = True

    def _undo_patches(self) -> None:
        """Not all of the patches could be applied: have none, so that the next call does not take them for applied."""
        self._patches, self._patches_id, self._is_patched = {}, None, True
        for weight in self._by_key.values():
            if weight.held is not None:
                self._bring_up_to_date(weight)

    def patch_hooks(self, patches: Patches, hooks_id: object, *, keep: bool) -> None:
        """Carry these patches on top of the others, instead of those of the last call. With `keep` what they give is
        remembered until the use ends.
        """
        if hooks_id == self._hooks_id:
            return
        needed_bytes, _ = self.hooking_bytes(patches, hooks_id)
        self._take_hooks_off()
        self._hook_patches, self._hooks_id = {key: entries for key, entries in patches.items() if entries}, hooks_id
        ready = self._hooked.get(hooks_id, {})
        spare_bytes = self.device.free_bytes() - needed_bytes if needed_bytes else math.inf
        made: dict[str, torch.Tensor] = {}
        for block in self._blocks if self._hook_patches else ():
            for weight in block.weights if block.is_there else ():
                if weight.key not in self._hook_patches:
                    continue
                if weight.key not in ready and self._can_go(block) and weight.shown.nbytes > spare_bytes:
                    self._let_go(block)  # its weights are patched on the way instead
                    spare_bytes += block.size_bytes
                    break
                made[weight.key] = self._put_hooks_on(weight, ready.get(weight.key))
                spare_bytes -= 0 if weight.key in ready else weight.shown.nbytes
        self._arrange_hooks()
        if keep and not ready:
            self._hooked[hooks_id] = made

    def _put_hooks_on(self, weight: Weight, ready: torch.Tensor | None) -> torch.Tensor:
        assert weight.held is not None
        hooked = self._patched_there(self._hook_patches[weight.key], weight) if ready is None else ready
        weight.below, weight.held = weight.held, hooked
        weight.show(hooked)
        return hooked

    def hooking_bytes(self, patches: Patches, hooks_id: object) -> tuple[int, int]:
        """What has to be free on the device so that the model can compute with these patches on top of the others, and
        what is best free: room for all hooked weights beside the originals.
        """
        if hooks_id == self._hooks_id or not self.device.has_own_memory or not any(patches.values()):
            return 0, 0
        weights = [self._weight(key) for key in patches]
        patching = max(self.patching_bytes, *(_patching_bytes(weight.shown) for weight in weights))
        least = self.working_bytes + patching + max(0, self.block_bytes - self.lanes.buffers_bytes)
        if hooks_id in self._hooked:
            return least, least
        return least, least + sum(weight.held.nbytes for weight in weights if weight.held is not None)

    def give(self, num_bytes: int) -> int:
        """While in use: let at least so many bytes leave, to be brought while their layers compute. What left."""
        left = 0
        for block in sorted(self._blocks, key=lambda block: block.size_bytes):
            if left < num_bytes and block.is_there and self._can_go(block):
                self._let_go(block)
                left += block.size_bytes
        self._arrange_hooks()
        return left

    def _can_go(self, block: Block) -> bool:
        return self.can_leave and block.is_brought

    def undo_hooks(self) -> None:
        """Take the second layer off and forget what was remembered of it."""
        self._take_hooks_off()
        self._hooked.clear()

    def original_weight(self, key: str) -> torch.Tensor:
        """The weight (or buffer) without patches, in RAM if the model can leave its device.

        Raises KeyError for a name the module does not have.
        """
        weight = self._weight(key)
        if weight.home is not None:
            return weight.home
        if self._source is not None and key in self._source.names:
            return next(tensor for _, tensor in self._read([key]))
        copied = self._copy_in_ram(weight)
        assert copied is not None, f"{self.name} {key}: nobody has it"
        return copied

    def current_weight(self, key: str) -> torch.Tensor:
        """The weight with the patches and hooks of now, wherever it is. Raises KeyError as `original_weight`."""
        weight = self._weight(key)
        if weight.held is not None:
            return weight.held
        tensor = self.original_weight(key).to(self.load_device)
        for entries in (self._patches.get(key), self._hook_patches.get(key)):
            if entries:
                tensor = self._patched(entries, tensor, key)
        return tensor

    def check_integrity(self) -> None:
        """Raises AssertionError when what the module shows is not what is known of it."""
        for block in self._blocks:
            assert not block.covered and block.lane is None, f"{self.name}: a layer still computes"
            for weight in block.weights:
                assert block.is_there == (weight.held is not None), f"{self.name} {weight.key}: half there"
                shown = weight.home if weight.held is None else weight.held
                if shown is not None:
                    same = weight.shown.data_ptr() == shown.data_ptr()
                    assert same, f"{self.name} {weight.key}: the module sees another tensor"
                wanted = self._patches.get(weight.key, ())
                is_so = weight.held is None or not self._is_patched or same_patches(weight.applied, wanted)
                assert is_so, f"{self.name} {weight.key}: patched otherwise"

    # --- one block ---------------------------------------------------------------------------------------------------

    def _divide(self) -> Iterator[Block]:
        by_id: dict[int, Weight] = {}
        blocks: list[tuple[nn.Module, list[Weight]]] = []
        for path, module in self.module.named_modules():
            own: list[Weight] = []
            for name, tensor in (*module._parameters.items(), *module._buffers.items()):
                if tensor is None:
                    continue
                if id(tensor) in by_id:
                    by_id[id(tensor)].owners.append((module, name))
                    continue
                key = f"{path}.{name}" if path else name
                own.append(Weight(key, [(module, name)], None if tensor.is_meta else tensor))
                by_id[id(tensor)] = own[-1]
            if own:
                blocks.append((module, own))
        for module, weights in blocks:
            is_alone = all(len(weight.owners) == 1 for weight in weights) and not module._buffers
            size = sum(weight.shown.nbytes for weight in weights)
            block = Block(module, weights, size, is_alone and isinstance(module, BROUGHT_LAYERS))
            if all(weight.home is not None and self._is_at_home(weight.home) for weight in weights):
                block.is_there = True
                for weight in weights:
                    weight.held = weight.home
            yield block

    def _is_at_home(self, home: torch.Tensor) -> bool:
        """Whether a model computes with its home itself."""
        return self.device.is_home_of(home)

    def _hold_all(self, blocks: Sequence[Block]) -> None:
        """Bring blocks to the device: what has no home straight from the file, one tensor after the other."""
        lacking = {weight.key: weight for block in blocks for weight in block.weights if weight.held is None}
        names = () if self._source is None else self._source.names
        homes = {key: weight.home for key, weight in lacking.items() if key in names}
        try:
            if self.device.has_own_memory and self._source is not None:
                self._upload([weight for key, weight in lacking.items() if self._comes_from_file(key)])
            for key, tensor in self._read(key for key, weight in lacking.items() if self._is_nowhere(weight)):
                self._hold(lacking[key], tensor)
            for block in blocks:
                for weight in block.weights:
                    if weight.held is None:
                        assert weight.home is not None, f"{self.name} {weight.key}: nobody has it"
                        self._hold(weight, weight.home)
                block.is_there = True
        finally:
            for block in blocks:
                if not block.is_there:  # the device had no room for all of it
                    self._take_back(block, homes)

    def _comes_from_file(self, key: str) -> bool:
        """Whether the file is where to bring a weight from: its home is a view of it, or there is none."""
        source, home = self._source, self._by_key[key].home
        return source is not None and key in source.names and (home is None or source.is_view(key))

    def _is_view(self, key: str) -> bool:
        """Whether a home in the mapped file takes no RAM."""
        return self._source is not None and self._source.is_view(key)

    def _is_nowhere(self, weight: Weight) -> bool:
        return weight.home is None and weight.held is None

    def _upload(self, weights: Sequence[Weight]) -> None:
        """Bring weights from the file to the device, through a little pinned memory."""
        assert self._source is not None
        by_key = {weight.key: weight for weight in weights}
        raws = list(self._source.raw(by_key))

        def pairs() -> Iterator[tuple[torch.Tensor, RawWeight]]:
            for key, raw in raws:
                held = by_key[key].held = self.device.empty_like(by_key[key].shown)
                yield held, raw

        if raws:
            upload(self.device, pairs(), max(raw.num_bytes for _, raw in raws))
        for weight in weights:
            assert weight.held is not None
            weight.applied = ()
            if not self.can_leave:
                weight.home = weight.held  # it never leaves
            self._bring_up_to_date(weight)

    def _take_back(self, block: Block, homes: Mapping[str, torch.Tensor | None]) -> None:
        """Forget what came, also originals that had just come to stay; `homes` is where the file's weights were."""
        for weight in block.weights:
            if self.device.has_own_memory and not self.can_leave and weight.key in homes:
                weight.home = homes[weight.key]
            weight.held, weight.applied = None, ()
            weight.show(weight.home)

    def _hold(self, weight: Weight, original: torch.Tensor) -> None:
        if self._is_at_home(original):
            weight.home = weight.held = original
        else:
            weight.held = self.device.empty_like(weight.shown)
            self.device.copy(None, weight.held, original)
            if not self.can_leave:
                weight.home = weight.held  # it never leaves
            elif weight.home is None and self._is_view(weight.key):
                weight.home = original
        weight.applied = ()
        self._bring_up_to_date(weight)

    def _let_go(self, block: Block, *, into_ram: bool = True) -> None:
        if not block.is_there:
            return
        names = () if into_ram or self._source is None else self._source.names
        for weight in block.weights:
            if (weight.home is None and weight.key not in names) or (
                weight.home is not None and weight.home.device.type != "cpu"
            ):
                weight.home = self._copy_in_ram(weight)
            weight.show(weight.home)
            weight.held = weight.below = None
            weight.applied = ()
        block.is_there = False

    def _copy_in_ram(self, weight: Weight) -> torch.Tensor | None:
        """Of what the device has of the original; None where only the file has it: leaving waits for no disk."""
        if weight.home is not None:
            return weight.home.to("cpu", copy=True)
        held = weight.held if weight.below is None else weight.below
        return None if held is None or weight.applied else held.to("cpu", copy=True)

    def _bring_up_to_date(self, weight: Weight) -> None:
        """Let what the device holds carry the patches of now."""
        wanted = self._patches.get(weight.key, ())
        assert weight.held is not None
        if not same_patches(weight.applied, wanted):
            if weight.applied:
                self._put_original_back(weight)
                weight.applied = ()
            if wanted:
                self._put_patched(weight, wanted)
            weight.applied = wanted
        weight.show(weight.held)

    def _put_original_back(self, weight: Weight) -> None:
        original = self.original_weight(weight.key)
        if self._is_at_home(original) or not self.can_leave:
            weight.held = original
            return
        assert weight.held is not None
        self.device.copy(None, weight.held, original)  # into the memory of the patched one, which is ours alone

    def _put_patched(self, weight: Weight, entries: Sequence[WeightPatch]) -> None:
        assert weight.held is not None
        if self.device.has_own_memory and weight.held is not weight.home:
            weight.held.copy_(self._patched(entries, weight.held, weight.key))
        else:
            weight.held = self._patched_there(entries, weight)

    def _patched_there(self, entries: Sequence[WeightPatch], weight: Weight) -> torch.Tensor:
        """What the device holds of a weight with patches, in memory of its own there."""
        assert weight.held is not None
        changed = self._patched(entries, weight.held, weight.key)
        if not self.device.charges_blocks:
            return changed
        return self.device.empty_like(changed).copy_(changed)

    def _patched(self, entries: Sequence[WeightPatch], weight: torch.Tensor, key: str) -> torch.Tensor:
        if self.device.charges_blocks:
            self.device.begin_block(self._working_now_bytes + _patching_bytes(weight) - weight.nbytes)
        return patched(entries, weight, key, self.original_weight, getattr(self.module, "patched_dtype", None))

    def _take_hooks_off(self) -> None:
        for key in self._hook_patches:
            weight = self._weight(key)
            if weight.below is not None:
                weight.held, weight.below = weight.below, None
                weight.show(weight.held)
        self._hook_patches, self._hooks_id = {}, None

    # --- while a layer computes --------------------------------------------------------------------------------------

    def _arrange_hooks(self) -> None:
        """Layers that need something before they compute get it; the others are left alone."""
        for block in self._blocks:
            needs = block.is_brought and (not block.is_there or self._is_cast(block) or self.device.charges_blocks)
            if needs and not block.hooks:
                block.hooks = [
                    block.module.register_forward_pre_hook(_before(self, block)),
                    block.module.register_forward_hook(_after(block), always_call=True),
                ]
            elif not needs and block.hooks:
                for hook in block.hooks:
                    hook.remove()
                block.hooks = []

    def bring(self, block: Block, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Let the layer see its weights for one call; its arguments if they change. Raises `OutOfMemory`."""
        if self.device.charges_blocks:
            self.device.begin_block(self.working_bytes)
        if block.is_there and not self._is_cast(block):
            return None
        if isinstance(block.module, nn.Embedding) and (block.is_there or self._looks_up(block)):
            return self._bring_rows(block.weights[0], block, args)
        block.lane = self.lanes.next(0 if block.is_there else block.size_bytes, self._buffer_bytes(block))
        self._working_now_bytes = self.working_bytes
        try:
            for weight in block.weights:
                block.covered.append((weight, weight.shown))
                weight.show(self._brought(weight, block.lane))
        finally:
            self._working_now_bytes = 0
        block.lane.arrive()
        if isinstance(block.module, nn.Embedding):  # asked for where its table lay: in RAM
            return (args[0].to(self.load_device), *args[1:])
        return None

    def _brought(self, weight: Weight, lane: Lane) -> torch.Tensor:
        layers = [layer for layer in (self._patches.get(weight.key), self._hook_patches.get(weight.key)) if layer]
        last = _is_channels_last(weight.shown)
        if weight.held is None and not layers:
            assert weight.home is not None, f"{self.name} {weight.key}: it was not read"
            return lane.bring(weight.home, self._type_of(weight.home), channels_last=last)
        tensor = weight.held
        if tensor is None:  # patched on the way: the same arithmetic on the same device
            assert weight.home is not None, f"{self.name} {weight.key}: it was not read"
            tensor = self.device.empty_like(weight.shown)
            self.device.copy(None, tensor, weight.home)
            for entries in layers:
                tensor = self._patched(entries, tensor, weight.key)
        return lane.bring(tensor, self._type_of(tensor), channels_last=last, is_computed=True)

    def _looks_up(self, block: Block) -> bool:
        """Whether a layer is a table of which, while it is away, only those rows need to come that are asked for."""
        if not isinstance(block.module, nn.Embedding):
            return False
        key = block.weights[0].key
        return key not in self._patches and key not in self._hook_patches

    def _bring_rows(self, weight: Weight, block: Block, args: tuple[Any, ...]) -> tuple[Any, ...]:
        whole = weight.home if weight.held is None else weight.held
        assert whole is not None, f"{self.name} {weight.key}: it was not read"
        rows = args[0].reshape(-1)
        table = whole[rows.to(whole.device)]
        block.covered.append((weight, weight.shown))
        weight.show(table.to(self.load_device, self._type_of(table)))
        places = torch.arange(rows.numel(), device=self.load_device)
        return (places.view(args[0].shape), *args[1:])

    def _type_of(self, tensor: torch.Tensor) -> torch.dtype:
        """What a weight is computed in."""
        is_cast = self._compute_dtype is not None and tensor.is_floating_point()
        return self._compute_dtype if is_cast and self._compute_dtype is not None else tensor.dtype

    def _is_cast(self, block: Block) -> bool:
        return self._compute_dtype is not None and any(
            self._type_of(weight.shown) != weight.shown.dtype for weight in block.weights
        )

    def _buffer_bytes(self, block: Block) -> int:
        sizes = []
        for shown in (weight.shown for weight in block.weights):
            dtype = self._type_of(shown)
            # Even for a block that is there now: it is planned for that it may be away.
            sizes.append(
                padded(shown.numel() * dtype.itemsize) + (landing_bytes(shown, dtype) if self.can_leave else 0)
            )
        return sum(sizes)

    # --- homes -------------------------------------------------------------------------------------------------------

    def _read_homes(self, blocks: Sequence[Block]) -> None:
        """Have the homes of blocks that are away in RAM, also those that are views nobody has touched yet."""
        wanted: dict[str, Weight] = {}
        for block in blocks:
            for weight in block.weights:
                is_unread = not block.is_read and not weight.is_pinned and self._is_view(weight.key)
                if weight.home is None or is_unread:
                    wanted[weight.key] = weight
            block.is_read = True
        for key, tensor in self._read(wanted):
            weight = wanted.pop(key)
            weight.home = tensor
            weight.show(tensor)

    def _pin_homes(self, blocks: Sequence[Block]) -> None:
        """Move the homes of blocks that are away to pinned memory, as far as there is any."""
        for weight in (weight for block in blocks for weight in block.weights):
            copy = None if self._pinned is None or weight.is_pinned or weight.home is None else self._pin(weight.home)
            if copy is not None:
                weight.home, weight.is_pinned = copy, True
                weight.show(copy)

    def _pin(self, home: torch.Tensor) -> torch.Tensor | None:
        assert self._pinned is not None
        return self._pinned.pin(home)

    def _read(self, keys: Iterable[str]) -> Iterator[tuple[str, torch.Tensor]]:
        wanted = list(keys)
        if not wanted:
            return iter(())
        assert self._source is not None, f"{self.name} {wanted[0]}: there is no file to read it from"
        return self._source.read(wanted)

    def _in_ram(self) -> Iterator[tuple[Weight, torch.Tensor]]:
        """Weights whose homes take RAM, and these; also while another thread moves them."""
        for weight in self._by_key.values():
            home = weight.home
            is_view = not weight.is_pinned and self._is_view(weight.key)
            stays = self.device.has_own_memory and not self.can_leave and weight.held is not None
            if home is not None and home.device.type == "cpu" and not is_view and not stays:
                yield weight, home

    def _droppable(self) -> Iterator[tuple[Weight, torch.Tensor]]:
        names = () if self._source is None else self._source.names
        for weight, home in self._in_ram():
            is_needed = weight.applied and not self.device.has_own_memory
            if weight.key in names and not is_needed:
                yield weight, home

    def _weight(self, key: str) -> Weight:
        return self._by_key[key]


# Hooks are functions and no methods, so that a module does not hold its ModuleWeights for longer than these live.


def _before(weights: ModuleWeights, block: Block) -> Callable[..., Any]:
    def before(module: nn.Module, args: tuple[Any, ...]) -> Any:
        return weights.bring(block, args)

    return before


def _after(block: Block) -> Callable[..., None]:
    def after(module: nn.Module, args: Any, output: Any) -> None:
        for weight, tensor in block.covered:
            weight.show(tensor)
        block.covered.clear()
        if block.lane is not None:
            block.lane.end()
            block.lane = None

    return after


def _patching_bytes(weight: torch.Tensor) -> int:
    """The weight as it is brought, in float32, two tensors more for the difference, and what comes of it."""
    return weight.numel() * (NUM_FLOAT32_TO_PATCH * torch.float32.itemsize + 2 * weight.dtype.itemsize)


def _is_channels_last(tensor: torch.Tensor) -> bool:
    return tensor.ndim == 4 and not tensor.is_contiguous() and tensor.is_contiguous(memory_format=torch.channels_last)

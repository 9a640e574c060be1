"""Failures at any moment on a simulated device: memory that runs out, copies and files that fail, a stop; what holds
after.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from darkroom.engine.errors import BadModelFile, Interrupted, OutOfMemory
from darkroom.engine.formats.safetensors_file import SafetensorsFile, write_safetensors
from darkroom.engine.formats.weight_source import FileWeights, WeightInFile
from darkroom.engine.memory.device import Device, Dtype, Tensor
from darkroom.engine.memory.model_pool import ModelPool
from darkroom.engine.memory.offload.module_weights import ModuleWeights
from darkroom.engine.memory.plan import Limits
from darkroom.engine.memory.relief import MemorySavings
from darkroom.engine.memory.residency import Residency
from darkroom.engine.memory.simulated_device import SimulatedDevice
from darkroom.engine.memory.state import VramState
from darkroom.engine.memory.transfer_streams import PinnedMemory, TransferStreams
from tests.engine.memory.simulated import network, patch

X = torch.linspace(-1, 1, 32).reshape(2, 16)
NUM_LAYERS = 3
SIZE = sum(weight.nbytes for weight in network(0, NUM_LAYERS).state_dict().values())
LEAST_BYTES = 9000  # a buffer for the largest block, a patch, an evaluation
WHOLE = 20.0  # times the size of a model: where models are there whole, with all their patches, hooks' too

FLOAT8, ON_CPU = 2, 3
# What each model's file holds: what is wanted, another type, one that is cast while it computes, and one for the CPU.
STORED = (torch.float32, torch.float16, torch.float8_e4m3fn, torch.float16)
NUM_MODELS = len(STORED)


class Fuse:
    """Fails the nth call from now; None: none. `raises` is what is raised, instead of the call's own error."""

    def __init__(self) -> None:
        self.left: int | None = None
        self.raises: type[BaseException] | None = None
        self.has_failed = False

    def burn(self, fail: Callable[[], BaseException]) -> None:
        if self.left is None:
            return
        self.left -= 1
        if self.left < 0:
            self.left, self.has_failed = None, True
            raise fail() if self.raises is None else self.raises("stopped")


class FailingDevice(SimulatedDevice):
    def __init__(self, budget_bytes: int, fuse: Fuse) -> None:
        super().__init__(budget_bytes)
        self._fuse = fuse

    def _fail(self) -> None:
        self._fuse.burn(lambda: OutOfMemory("it was this call's turn", needed_bytes=1, free_bytes=0))

    def empty_like(self, tensor: Tensor, dtype: Dtype | None = None) -> Tensor:
        self._fail()
        return super().empty_like(tensor, dtype)

    def empty_bytes(self, num_bytes: int) -> Tensor:
        self._fail()
        return super().empty_bytes(num_bytes)

    def empty(self, shape: Sequence[int], dtype: Dtype) -> Tensor:
        self._fail()
        return super().empty(shape, dtype)

    def begin_block(self, working_bytes: int) -> None:
        self._fail()
        super().begin_block(working_bytes)

    def copy(self, stream: Any, target: Tensor, source: Tensor) -> None:
        self._fail()
        super().copy(stream, target, source)

    def mark(self, stream: Any) -> Any:
        """Also asked for when a layer has computed."""
        self._fail()
        return super().mark(stream)


class FailingFile(FileWeights):
    fuse: Fuse

    def _fail(self) -> None:
        self.fuse.burn(lambda: BadModelFile("a file", "a disk that fails", "one that does not"))

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in super().read(names):
            self._fail()
            yield name, tensor

    def raw(self, names: Iterable[str]) -> Iterator[tuple[str, WeightInFile]]:
        for name, weight in super().raw(names):
            self._fail()
            yield name, weight


class Rig:
    """A device, a CPU, and models from files."""

    def __init__(self, folder: Path, budget_bytes: int, state: VramState, *, pins: bool) -> None:
        self.folder = folder
        self.fuse = Fuse()
        self.device = FailingDevice(budget_bytes, self.fuse)
        self.cpu = Device()
        self.ram_bytes = 1 << 40
        self.state = state
        self.pool = ModelPool(state, limits=Limits(0, 0), ram_bytes=lambda: (self.ram_bytes, 1 << 20))
        self.streams, self.cpu_streams = TransferStreams(self.device, 2), TransferStreams(self.cpu, 0)
        self.pinned = PinnedMemory(self.device, SIZE if pins else 0, lambda: 1 << 40)
        self.handles = [self.add(index) for index in range(NUM_MODELS)]

    def add(self, index: int) -> Residency:
        stored, on_cpu = STORED[index], index == ON_CPU
        wanted = stored if index == FLOAT8 else torch.float32
        module = network(index, NUM_LAYERS)
        weights = {name: weight.detach().to(wanted) for name, weight in module.state_dict().items()}
        path = self.folder / f"{index}.safetensors"
        write_safetensors(path, {name: weight.to(stored) for name, weight in weights.items()})
        source = FailingFile(SafetensorsFile(path), {name: name for name in weights}, weights, copies=on_cpu)
        source.fuse = self.fuse
        for name, weight in weights.items():
            owner, _, attribute = name.rpartition(".")
            tensor = source.view(name) if source.is_view(name) else torch.empty_like(weight, device="meta")
            parameter = torch.nn.Parameter(tensor, requires_grad=False)
            setattr(module.get_submodule(owner), attribute, parameter)
        stays = self.state is VramState.GPU_ONLY or (self.state is VramState.HIGH_VRAM and index == 0)
        resident = ModuleWeights(
            f"model {index}", module, device=self.cpu if on_cpu else self.device,
            streams=self.cpu_streams if on_cpu else self.streams, pinned=None if on_cpu else self.pinned, source=source,
            rests_in_ram=not stays, compute_dtype=torch.float32 if index == FLOAT8 else None,
        )  # fmt: skip
        return self.pool.add(resident)

    def run(
        self, use: Use, together: Sequence[int] = (), within: Use | None = None
    ) -> Iterator[tuple[Key, torch.Tensor]]:
        """Yield the key of each evaluation of a use and its result; another use may be within."""
        index, lora, hook, keeps = use
        handle, module = self.handles[index], network(index, NUM_LAYERS)
        others = [other for other in dict.fromkeys(together) if other != index]
        for other in others:
            self.handles[other].prepare(patches_id=(other, None))
        with handle.in_use(
            working_bytes=64,
            patches={} if lora is None else patch(module, *lora),
            patches_id=(index, lora),
            together_with=[self.handles[other] for other in others],
        ) as used:
            for turn in (hook, None, hook) if keeps else (hook,):
                handle.patch_hooks({} if turn is None else patch(module, turn, 0.25), turn, keep=keeps)
                yield (index, lora, turn), used(X)
            for other in others:
                yield (other, None, None), self.handles[other].module(X)
            if within is not None:
                yield from self.run(within)
                yield (index, lora, hook), used(X)

    def check(self) -> None:
        self.pool.check_integrity()
        assert self.device.charged_bytes == self.pool.report().device_bytes, "memory that nobody accounts for"


Lora = tuple[int, float] | None
Key = tuple[int, Lora, int | None]
Use = tuple[int, Lora, int | None, bool]


class Reference:
    """Results of all keys where nothing fails and everything fits."""

    def __init__(self) -> None:
        self._known: dict[Key, torch.Tensor] = {}

    def result(self, key: Key) -> torch.Tensor:
        if key not in self._known:
            with TemporaryDirectory() as folder:
                rig = Rig(Path(folder), int(WHOLE * SIZE), VramState.NORMAL_VRAM, pins=False)
                ((_, self._known[key]),) = rig.run((*key, False))
        return self._known[key]


REFERENCE = Reference()

uses = st.tuples(
    st.integers(0, NUM_MODELS - 1),
    st.sampled_from([None, (1, 0.5), (1, 0.75), (2, 0.5)]),  # a LoRA: its seed and its strength
    st.sampled_from([None, 1, 2]),  # a hook's seed
    st.booleans(),  # whether it comes and goes, and is remembered meanwhile
)
a_use = st.tuples(
    st.just("use"),
    uses,
    st.lists(st.integers(0, NUM_MODELS - 1), max_size=2),  # models that run together with it
    st.one_of(st.none(), uses),  # a use within it
)
steps = st.one_of(
    a_use,
    a_use,
    st.tuples(st.just("unload")),
    st.tuples(st.just("drop")),
    st.tuples(st.just("end run")),
    st.tuples(st.just("add anew"), st.integers(0, NUM_MODELS - 1)),
    st.tuples(st.just("share"), st.sampled_from([0.0, 0.5, 1.0])),
    st.tuples(st.just("budget"), st.floats(0.05, 2.5)),
    st.tuples(st.just("ram"), st.sampled_from([0, 1 << 40])),
)
failures = st.one_of(
    st.none(),
    st.tuples(st.integers(0, 200), st.sampled_from([None, Interrupted, KeyboardInterrupt])),
)
STATES = (VramState.NORMAL_VRAM, VramState.NO_VRAM, VramState.HIGH_VRAM, VramState.GPU_ONLY)


@pytest.mark.parametrize("state", STATES)
@settings(max_examples=6, deadline=None)
@given(st.lists(st.tuples(steps, failures), min_size=1, max_size=10), st.floats(0.05, 2.5), st.booleans())
@example([(("use", (0, (1, 0.5), None, False), [], None), (120, None))], 1.0, False)  # originals have just come to stay
@example([(("use", (1, (2, 0.5), 1, False), [], None), None)], 1.2, False)  # patched, read straight to the device
def test_whatever_fails_the_next_use_gives_the_same_bits(
    state: VramState, sequence: list[tuple[Any, tuple[int, Any] | None]], share: float, pins: bool
) -> None:
    with TemporaryDirectory() as folder:
        rig = Rig(Path(folder), _budget(share, state), state, pins=pins)
        for step, failure in sequence:
            rig.fuse.left, rig.fuse.raises = (None, None) if failure is None else failure
            rig.fuse.has_failed = False
            _do(rig, step)
            rig.fuse.left = None
            rig.check()
        rig.pool.memory_savings = MemorySavings()
        for index in range(NUM_MODELS):
            for key, result in rig.run((index, None, None, False)):
                assert torch.equal(result, REFERENCE.result(key))


def _budget(share: float, state: VramState) -> int:
    return int((share if state.loads_in_part else WHOLE) * SIZE) + LEAST_BYTES


def _do(rig: Rig, step: Any) -> None:
    match step:
        case ("use", use, together, within):
            try:
                for key, result in rig.run(use, together, within):
                    assert torch.equal(result, REFERENCE.result(key)), key
            except OutOfMemory:
                assert rig.fuse.has_failed or within is not None  # what is in use cannot leave for another use
            except (BadModelFile, Interrupted, KeyboardInterrupt):
                assert rig.fuse.has_failed
        case ("unload",):
            rig.pool.unload_all()
        case ("drop",):
            rig.pool.drop_all()
        case ("end run",):
            rig.pool.after_run()
        case ("add anew", index):
            rig.handles[index] = rig.add(index)
        case ("share", weights_share):
            rig.pool.memory_savings = MemorySavings(weights_share=weights_share)
        case ("budget", share):
            rig.device.budget_bytes = max(
                _budget(share, rig.state), rig.device.charged_bytes
            )  # others take what is free
        case ("ram", num_bytes):
            rig.ram_bytes = num_bytes

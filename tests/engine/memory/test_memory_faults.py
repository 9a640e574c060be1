"""Failures at any moment on a simulated device: memory that runs out, copies and files that fail; what holds after."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.checkpoints.safetensors_file import SafetensorsFile, write_safetensors
from engine.checkpoints.weight_source import FileWeights, WeightInFile
from engine.errors import BadModelFile, OutOfMemory
from engine.memory.device import Dtype, Tensor
from engine.memory.lanes import Lanes, PinnedMemory
from engine.memory.model_pool import ModelPool, Residency
from engine.memory.offload import ModuleWeights
from engine.memory.plan import Limits
from engine.memory.relief import Economy
from engine.memory.simulated_device import SimulatedDevice
from engine.memory.state import VramState
from tests.engine.memory.simulated import network, patch

X = torch.linspace(-1, 1, 32).reshape(2, 16)
NUM_LAYERS = 3
SIZE = sum(weight.nbytes for weight in network(0, NUM_LAYERS).state_dict().values())


class Fuse:
    """Fails the nth call from now; None: none."""

    def __init__(self) -> None:
        self.left: int | None = None
        self.has_failed = False

    def burn(self, fail: Callable[[], Exception]) -> None:
        if self.left is None:
            return
        self.left -= 1
        if self.left < 0:
            self.left, self.has_failed = None, True
            raise fail()


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


class FailingFile(FileWeights):
    fuse: Fuse

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in super().read(names):
            self.fuse.burn(lambda: BadModelFile("a file", "a disk that fails", "one that does not"))
            yield name, tensor

    def raw(self, names: Iterable[str]) -> Iterator[tuple[str, WeightInFile]]:
        for name, weight in super().raw(names):
            self.fuse.burn(lambda: BadModelFile("a file", "a disk that fails", "one that does not"))
            yield name, weight


class Rig:
    """A device and two models, from files of which one holds other types than are wanted."""

    def __init__(self, folder: Path, share: float, state: VramState, *, pins: bool) -> None:
        self.fuse = Fuse()
        self.device = FailingDevice(int(share * SIZE) + 20_000, self.fuse)
        self.ram_bytes = 1 << 40
        self.pool = ModelPool(state, limits=Limits(0, 0), ram_bytes=lambda: (self.ram_bytes, 1 << 20))
        self.lanes, pinned = Lanes(self.device, 2), PinnedMemory(self.device, SIZE if pins else 0)
        self.handles = [self._add(folder, seed, state, pinned) for seed in range(2)]

    def _add(self, folder: Path, seed: int, state: VramState, pinned: PinnedMemory) -> Residency:
        module = network(seed, NUM_LAYERS)
        weights = {name: weight.detach() for name, weight in module.state_dict().items()}
        path = folder / f"{seed}.safetensors"
        write_safetensors(path, {name: weight.to(stored_type(seed)) for name, weight in weights.items()})
        source = FailingFile(SafetensorsFile(path), {name: name for name in weights}, weights, copies=False)
        source.fuse = self.fuse
        for name, weight in weights.items():
            owner, _, attribute = name.rpartition(".")
            tensor = source.view(name) if source.is_view(name) else torch.empty_like(weight, device="meta")
            parameter = torch.nn.Parameter(tensor, requires_grad=False)
            setattr(module.get_submodule(owner), attribute, parameter)
        resident = ModuleWeights(
            f"model {seed}", module, device=self.device, lanes=self.lanes, pinned=pinned, source=source,
            rests_in_ram=state is not VramState.GPU_ONLY,
        )  # fmt: skip
        return self.pool.add(resident)

    def compute(self, index: int, lora: tuple[int, float] | None, hook: int | None) -> torch.Tensor:
        module = network(index, NUM_LAYERS)
        patches = {} if lora is None else patch(module, *lora)
        with self.handles[index].in_use(working_bytes=64, patches=patches, patches_id=(index, lora)) as used:
            if hook is not None:
                self.handles[index].patch_hooks(patch(module, hook, 0.25), ("hook", hook))
            result: torch.Tensor = used(X)
            return result

    def check(self) -> None:
        self.pool.check_integrity()
        report = self.pool.report()
        assert self.device.charged_bytes == report.device_bytes, "memory that nobody accounts for"


def stored_type(seed: int) -> torch.dtype:
    return torch.float16 if seed else torch.float32


def expected(index: int, lora: tuple[int, float] | None, hook: int | None) -> torch.Tensor:
    with TemporaryDirectory() as folder:
        return Rig(Path(folder), 20.0, VramState.NORMAL_VRAM, pins=False).compute(index, lora, hook)


KNOWN: dict[Any, torch.Tensor] = {}

uses = st.tuples(
    st.just("use"),
    st.integers(0, 1),
    st.sampled_from([None, (1, 0.5), (1, 0.75), (2, 0.5)]),
    st.sampled_from([None, 1]),
)
steps = st.one_of(
    uses,
    uses,
    st.tuples(st.just("unload")),
    st.tuples(st.just("drop")),
    st.tuples(st.just("share"), st.sampled_from([0.0, 0.5, 1.0])),
    st.tuples(st.just("ram"), st.sampled_from([0, 1 << 40])),
)


@pytest.mark.parametrize("state", [VramState.NORMAL_VRAM, VramState.GPU_ONLY])
@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.tuples(steps, st.one_of(st.none(), st.integers(0, 120))), min_size=1, max_size=10),
    st.floats(0.1, 2.5),
    st.booleans(),
)
@example([(("use", 0, (1, 0.5), None), 120)], 1.0, False)  # at a patch, when originals have just come to stay
def test_whatever_fails_the_next_use_gives_the_same_bits(
    state: VramState, sequence: list[tuple[Any, int | None]], share: float, pins: bool
) -> None:
    with TemporaryDirectory() as folder:
        rig = Rig(Path(folder), max(share, 6.0) if state is VramState.GPU_ONLY else share, state, pins=pins)
        for step, fails_at in sequence:
            rig.fuse.left, rig.fuse.has_failed = fails_at, False
            match step:
                case ("use", index, lora, hook):
                    key = (index, lora, hook)
                    try:
                        result = rig.compute(*key)
                    except (OutOfMemory, BadModelFile):
                        assert rig.fuse.has_failed
                    else:
                        rig.fuse.left = None
                        if key not in KNOWN:
                            KNOWN[key] = expected(*key)
                        assert torch.equal(result, KNOWN[key])
                case ("unload",):
                    rig.pool.unload_all()
                case ("drop",):
                    rig.pool.drop_all()
                case ("share", weights_share):
                    rig.pool.economy = Economy(weights_share=weights_share)
                case ("ram", num_bytes):
                    rig.ram_bytes = num_bytes
            rig.fuse.left = None
            rig.check()

"""Repeated blocks compiled in the background: every form by itself, of every family, with the same latents."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from darkroom.engine import Engine, EngineSettings
from darkroom.engine.diffusion.denoiser import Denoiser
from darkroom.engine.diffusion.likeness import relative_error
from darkroom.engine.families import registry
from darkroom.engine.layers.unet_layers import ResBlock, ResSpec
from darkroom.engine.tuning.block_arguments import (
    NotPlain,
    TensorForm,
    form_of,
    plain_arguments,
    with_forms,
    with_zeros,
)
from darkroom.engine.tuning.compiled_forms import CompiledForms, FormFunction, block_key, compiled_by
from darkroom.engine.tuning.repeated_blocks import repeated_blocks
from darkroom.engine.tuning.strategies.compiled_blocks import CompiledBlocks
from darkroom.engine.tuning.strategies.cuda_graph import HARMLESS_OPTIONS
from darkroom.engine.tuning.strategy import MachineFacts, SamplingUse
from darkroom.engine.tuning.workload import Trial, TrialSize
from tests.engine.tuning.test_strategies import Patcher

FAST_FAMILIES = ("flux", "wan")  # with one and two streams, of images and videos
PROMPTED = [family for family in registry.families() if family.text]


class Counting:
    """A backend of `torch.compile` that runs the graph as it is, and counts the graphs."""

    def __init__(self) -> None:
        self.num_graphs = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        self.num_graphs += 1
        return graph.forward


class Block(nn.Module):
    def __init__(self, width: int, factor: int = 1) -> None:
        super().__init__()
        self.layer, self.act, self.factor = nn.Linear(width, width), nn.ReLU(), factor

    def forward(self, x: torch.Tensor, options: dict[str, Any] | None = None) -> torch.Tensor:
        out: torch.Tensor = x + self.factor * self.act(self.layer(x))
        return out


class Network(nn.Module):
    """Blocks of these widths, which take the first features of the input."""

    def __init__(self, *blocks: Block) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.compute_dtype = torch.float32

    def forward(self, x: torch.Tensor, options: dict[str, Any] | None = None) -> torch.Tensor:
        for block in self.blocks:
            width = block.get_submodule("layer").get_parameter("weight").shape[0]
            x = x.clone()
            x[:, :width] = block(x[:, :width].contiguous(), options)
        return x


def use_of(network: nn.Module) -> SamplingUse:
    holder = Denoiser(network.requires_grad_(False))
    return SamplingUse(Patcher(holder), holder, {"transformer_options": {}})


@pytest.fixture
def backend() -> Counting:
    return Counting()


@pytest.fixture
def forms(backend: Counting) -> Iterator[CompiledForms]:
    made = CompiledForms(None, compiled_by(backend))
    yield made
    made.close()


# --- forms ------------------------------------------------------------------------------------------------------------


def test_each_of_eighteen_forms_is_compiled_and_none_falls_back(backend: Counting, forms: CompiledForms) -> None:
    network = Network(*(Block(width) for width in (*range(2, 20), 2, 19)))
    use, strategy = use_of(network), CompiledBlocks(forms)
    x = torch.randn(1, 19)
    with torch.inference_mode():
        plain = network(x)
        undo = strategy.apply(use)
        first = network(x)
        assert strategy.settle(60) is None
        assert (backend.num_graphs, len(forms.ready)) == (18, 18), "both blocks of a width share one"
        second = network(x)
        undo()
    assert torch.equal(first, plain) and torch.allclose(second, plain, atol=1e-6)
    assert backend.num_graphs == 18, "nothing is compiled where a step would wait for it"
    assert use.evaluation.num_compiled == 18


def test_a_block_with_another_constant_is_another_form(backend: Counting, forms: CompiledForms) -> None:
    network = Network(Block(4), Block(4, factor=2), Block(4))
    strategy, x = CompiledBlocks(forms), torch.randn(1, 4)
    with torch.inference_mode():
        plain = network(x)
        undo = strategy.apply(use_of(network))
        network(x)
        assert strategy.settle(60) is None and len(forms.ready) == 2
        assert torch.allclose(network(x), plain, atol=1e-6) and backend.num_graphs == 2
        undo()
    assert block_key(network.blocks[0]) == block_key(network.blocks[2]) != block_key(network.blocks[1])


def test_a_block_that_is_no_single_graph_stays_as_it_is_and_is_not_taken_for_compiled(forms: CompiledForms) -> None:
    class Waiting(Block):
        def forward(self, x: torch.Tensor, options: dict[str, Any] | None = None) -> torch.Tensor:
            return x + super().forward(x) if bool(x.sum() > 0) else x

    network = Network(Waiting(4), Waiting(4), Block(4), Block(4))
    strategy, x = CompiledBlocks(forms), torch.randn(1, 4)
    with torch.inference_mode():
        plain = network(x)
        undo = strategy.apply(use_of(network))
        network(x)
        assert strategy.settle(60) is None and len(forms.ready) == 1
        assert torch.allclose(network(x), plain, atol=1e-5)
        undo()


def test_a_step_never_waits_and_all_forms_take_their_place_together() -> None:
    ran: list[type] = []

    def compile_form(kind: type[nn.Module]) -> FormFunction:
        def compiled(block: Any, positional: Any, named: Any) -> Any:
            ran.append(kind)
            return kind.forward(block, *positional, **named)

        return compiled

    own = CompiledForms(None, compile_form)
    network, strategy = Network(Block(4), Block(4), Block(6), Block(6)), CompiledBlocks(own)
    use, x = use_of(network), torch.randn(1, 6)
    with torch.inference_mode():
        undo = strategy.apply(use)
        network(x)
        assert strategy.settle(60) is None and len(ran) == 2 == len(own.ready)
        network(x)
        undo()
    own.close()
    assert len(ran) == 6


def test_a_compiler_that_fails_is_the_reason_and_not_asked_for_ever() -> None:
    def compile_form(kind: type[nn.Module]) -> Any:
        raise RuntimeError("no compiler")

    network = Network(Block(4), Block(4), Block(6), Block(6))
    use, own = use_of(network), CompiledForms(None, compile_form)
    strategy, x = CompiledBlocks(own), torch.randn(1, 6)
    with torch.inference_mode():
        undo = strategy.apply(use)
        network(x)
        undo()
    assert strategy.settle(60) == "RuntimeError: no compiler" == strategy.unfit(use)
    own.close()


def test_a_failure_before_the_next_block_is_reached_does_not_keep_that_one_from_being_compiled() -> None:
    class Failing(Block):
        def forward(self, x: torch.Tensor, options: dict[str, Any] | None = None) -> torch.Tensor:
            assert own.settle(60) == "RuntimeError: not this kind"
            return super().forward(x)

    def compile_form(kind: type[nn.Module]) -> FormFunction:
        if kind is Failing:
            raise RuntimeError("not this kind")
        return lambda block, positional, named: kind.forward(block, *positional, **named)

    own = CompiledForms(None, compile_form)
    network, x = Network(Failing(4), Failing(4), Block(4), Block(4)), torch.randn(1, 4)
    strategy = CompiledBlocks(own)
    with torch.inference_mode():
        undo = strategy.apply(use_of(network))
        network(x)
        undo()
    assert strategy.settle(60) is None and len(own.ready) == 1
    own.close()


def test_what_is_not_done_yet_is_said() -> None:
    gate = threading.Event()
    own = CompiledForms(None, lambda kind: lambda block, positional, named: gate.wait(60))
    network, x = Network(Block(4), Block(4)), torch.randn(1, 4)
    strategy = CompiledBlocks(own)
    with torch.inference_mode():
        undo = strategy.apply(use_of(network))
        network(x)
        undo()
    assert strategy.settle(0) == "still compiling after 0 s: 0 of 1 forms are done"
    gate.set()
    own.close()


# --- arguments --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parts:
    tokens: torch.Tensor
    length: int


def test_arguments_have_one_form_where_one_function_takes_them() -> None:
    x = torch.zeros(2, 3)
    options = {"uuids": [object()], "sigmas": x, "block_index": 3}
    first = plain_arguments((x, Parts(x, 1), [x, None]), {"options": options}, HARMLESS_OPTIONS)
    assert first[1] == {"options": {}}
    assert form_of(first) == form_of(plain_arguments((x + 1, Parts(x, 1), [x, None]), {"options": {}}))
    for other in ((x.t(), Parts(x, 1), [x, None]), (x, Parts(x, 2), [x, None]), (x.half(), Parts(x, 1), [x, None])):
        assert form_of(first) != form_of(plain_arguments(other, {"options": {}}))


@pytest.mark.parametrize(
    "given", [{"options": {"patches": {"attn1": [print]}}}, {"options": {"states": object()}}, {"mask": print}]
)
def test_what_reaches_into_a_block_is_not_compiled(given: dict[str, Any], forms: CompiledForms) -> None:
    with pytest.raises(NotPlain):
        form_of(plain_arguments((), given))


def test_examples_have_the_strides_of_what_is_expanded() -> None:
    rows = torch.zeros(1, 3).expand(4, 3)
    made = with_zeros(with_forms(((rows, Parts(rows, 1)), {"pe": (rows.t(),)})))
    (first, parts), named = made
    for tensor, like in ((first, rows), (parts.tokens, rows), (named["pe"][0], rows.t())):
        assert TensorForm.of(tensor) == TensorForm.of(like)
    assert parts.length == 1


# --- blocks of networks -----------------------------------------------------------------------------------------------


def test_wrappers_and_lists_of_lists_are_looked_into_and_single_blocks_too() -> None:
    class Named(nn.Module):
        def __init__(self, block: nn.Module) -> None:
            super().__init__()
            self.block = block

    whole = nn.Module()
    whole.add_module("wrapped", nn.ModuleList(Named(Block(2)) for _ in range(2)))
    whole.add_module("levels", nn.ModuleList(nn.ModuleList([Block(2), nn.Identity()]) for _ in range(2)))
    whole.add_module("one", nn.ModuleList([Network(Block(2), Block(2))]))
    whole.add_module("plain", nn.ModuleList(nn.Linear(2, 2) for _ in range(3)))
    assert [type(block) for block in repeated_blocks(whole)] == [Block] * 4 + [Block] * 2


@pytest.mark.parametrize("change", ["forward", "hook", "float8"])
def test_a_block_that_was_changed_is_left_alone(change: str, forms: CompiledForms) -> None:
    network = Network(Block(4), Block(4))
    strategy, use = CompiledBlocks(forms), use_of(network)
    assert strategy.unfit(use) is None
    network.blocks[0].register_forward_pre_hook(lambda module, given: None)  # outside of its function
    assert strategy.unfit(use) is None
    for block in network.blocks:
        layer = block.get_submodule("layer")
        if change == "forward":
            layer.__dict__["forward"] = layer.forward
        elif change == "hook":
            layer.register_forward_hook(lambda module, given, out: None)
        else:
            weight = layer.get_parameter("weight").to(torch.float8_e4m3fn)
            layer.weight = nn.Parameter(weight, requires_grad=False)
    assert strategy.unfit(use) == "the network has no repeated blocks that can be compiled"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with Engine(EngineSettings(base_directory=tmp_path_factory.mktemp("base"), cpu=True)) as made:
        yield made


@pytest.mark.parametrize(
    "name",
    [pytest.param(family.name, marks=() if family.name in FAST_FAMILIES else pytest.mark.slow) for family in PROMPTED],
)
def test_blocks_of_every_family_draw_the_same_compiled(name: str, engine: Engine, backend: Counting) -> None:
    own = CompiledForms(None, compiled_by(backend))
    engine.tuner.replace(CompiledBlocks(own))
    size = TrialSize(64, 64, 1, 2.0, "euler", "normal")

    def draw() -> tuple[torch.Tensor, torch.Tensor, list[str], int]:
        with torch.inference_mode(), engine.sampling.active():
            values = engine.models.random_checkpoint(name, "small")
            trial = Trial(values, size, name, lambda: None)
            plain = trial.draw()
            with engine.tuner.forced(("compiled_blocks",)):
                trial.draw()
            own.settle(100)
            num_graphs = backend.num_graphs
            with engine.tuner.forced(("compiled_blocks",)) as used:
                return plain, trial.draw(), used.used, num_graphs

    plain, found, used, num_graphs = engine.runs.threads.submit(draw).result()
    own.close()
    assert used == ["compiled_blocks"] and own.ready and num_graphs == backend.num_graphs
    assert relative_error(found, plain) < 2e-5


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_real_compiler_gives_the_same_blocks_and_keeps_what_it_made(tmp_path: Path) -> None:
    own = CompiledForms(tmp_path)
    strategy = CompiledBlocks(own)
    if strategy.missing(MachineFacts("cpu", "a processor")) is not None:
        pytest.skip("there is no compiler on this machine")

    class OneBlock(nn.Module):
        repeated_blocks = (ResBlock,)

        def __init__(self) -> None:
            super().__init__()
            self.block = ResBlock(ResSpec(32, 32), 16)

        def forward(self, x: torch.Tensor, emb: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.block(x, emb)
            return out

    torch.manual_seed(0)
    network, x, emb = OneBlock(), torch.randn(1, 32, 8, 8), torch.randn(1, 16)
    with torch.inference_mode():
        plain = network(x, emb)
        undo = strategy.apply(use_of(network))
        network(x, emb)
        assert strategy.settle(500) is None
        found = network(x, emb)
        undo()
    own.close()
    assert own.ready and relative_error(found, plain) < 1e-5
    assert (tmp_path / "compiled_blocks.bin").is_file()

"""TorchCompileModel: the network that samples is the compiled one, and gives the same latents."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from darkroom.engine.cancel import CancelToken
from darkroom.engine.diffusion import compilation as compiling
from darkroom.engine.diffusion.wrappers import APPLY_MODEL
from darkroom.engine.layers.basic import Conv2d, Linear
from darkroom.engine.models.model import Model
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.library.conditioning.text import clip_text_encode
from darkroom.engine.nodes.library.model.compilation import compile_networks, torch_compile_model
from darkroom.engine.nodes.library.sampling.sampling import ksampler
from tests.engine.nodes.small_store import small_store
from tests.tiny_checkpoint import make_tiny_checkpoint


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> NodeContext:
    models = tmp_path_factory.mktemp("models")
    make_tiny_checkpoint(models / "checkpoints")
    return NodeContext("1", "p", CancelToken(), lambda value, total: None, None, small_store(models), None)


@pytest.fixture(scope="module")
def sample(context: NodeContext) -> Callable[[Model], torch.Tensor]:
    _, clip, _ = context.models.checkpoint("tiny.safetensors")
    texts = [clip_text_encode(context, text=text, clip=clip) for text in ("a fox", "")]

    def run(model: Model) -> torch.Tensor:
        found: torch.Tensor = ksampler(
            context, model=model, seed=3, steps=3, cfg=4.0, sampler_name="euler", scheduler="normal",
            positive=texts[0], negative=texts[1], latent_image={"samples": torch.zeros(1, 4, 8, 8)}, denoise=1.0,
        )["samples"]  # fmt: skip
        return found

    return run


@pytest.fixture
def model(context: NodeContext) -> Model:
    found: Model = context.models.checkpoint("tiny.safetensors")[0]
    return found


def assert_close_to(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Compare latents by relative distance: compilers sum in another order than the layers for a CPU do."""
    assert float((found - expected).norm() / expected.norm()) < 5e-5


class CountingBackend:
    """A compiler that runs graphs as they are and counts what it was given and what ran."""

    def __init__(self) -> None:
        self.num_nodes = 0
        self.num_calls = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        self.num_nodes += len(graph.graph.nodes)

        def run(*args: Any) -> Any:
            self.num_calls += 1
            return graph.forward(*args)

        return run


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.linear(value).sin()
        return found


class Owner:
    """A model whose `apply_model` is wrapped."""

    def __init__(self) -> None:
        self.network: Any = Network()


class Executor:
    def __init__(self) -> None:
        self.class_obj = Owner()

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.class_obj.network(value)
        return found


def test_a_network_is_compiled_once_and_is_its_models_own_again_after_each_call() -> None:
    backend, executor, value = CountingBackend(), Executor(), torch.rand(2, 4)
    network = executor.class_obj.network
    wrapper = compiling.CompiledNetworks(("network",), {"backend": backend})
    for _ in range(3):
        assert torch.equal(wrapper(executor, value), network(value))
        assert executor.class_obj.network is network
    assert backend.num_calls == 3 and 0 < backend.num_nodes < 12


def test_a_network_that_a_patch_has_replaced_is_compiled_anew() -> None:
    backend, executor, value = CountingBackend(), Executor(), torch.rand(2, 4)
    wrapper = compiling.CompiledNetworks(("network",), {"backend": backend})
    wrapper(executor, value)
    executor.class_obj.network = Network()
    assert torch.equal(wrapper(executor, value), executor.class_obj.network(value))


def test_a_part_of_a_network_is_compiled() -> None:
    backend, executor, value = CountingBackend(), Executor(), torch.rand(2, 4)
    expected = executor(value)
    assert torch.equal(compiling.CompiledNetworks(("network.linear",), {"backend": backend})(executor, value), expected)
    assert backend.num_calls == 1 and type(executor.class_obj.network.linear) is torch.nn.Linear


def test_a_network_that_cannot_be_compiled_runs_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("no such instruction")

    executor, value = Executor(), torch.rand(2, 4)
    wrapper = compiling.CompiledNetworks(("network",), {"backend": refuse})
    for _ in range(2):
        assert torch.equal(wrapper(executor, value), executor(value))
    assert wrapper.failure == "RuntimeError: no such instruction"
    warnings = [record for record in caplog.records if record.name == compiling.__name__]
    assert len(warnings) == 1


def test_an_error_of_the_network_itself_is_no_failure_to_compile() -> None:
    executor = Executor()
    network = executor.class_obj.network
    wrapper = compiling.CompiledNetworks(("network",), {"backend": "eager"})
    with pytest.raises(Exception, match="shapes cannot be multiplied|must match"):
        wrapper(executor, torch.zeros(3, 3))
    assert executor.class_obj.network is network


@pytest.mark.slow
def test_a_compiled_model_samples_the_same_latents(model: Model, sample: Callable[[Model], torch.Tensor]) -> None:
    backend, patched = CountingBackend(), model.clone()
    compile_networks(patched, backend=backend)
    expected = sample(model)
    assert backend.num_calls == 0  # the other clone is as it was
    assert_close_to(sample(patched), expected)
    assert backend.num_nodes > 100  # a UNet's operations, not a wrapper's
    num_nodes = backend.num_nodes
    sample(patched.clone())
    assert backend.num_nodes == num_nodes  # compiled once for all steps and clones


def test_compiling_again_replaces_the_compiler(model: Model) -> None:
    compile_networks(model, backend="eager")
    compile_networks(model, backend="inductor", mode="max-autotune")
    [wrapper] = model.get_wrappers(APPLY_MODEL, compiling.KEY)
    assert isinstance(wrapper, compiling.CompiledNetworks)
    assert wrapper.arguments == {"backend": "inductor", "mode": "max-autotune"}
    assert model.model_options["torch_compile_kwargs"] == wrapper.arguments


def test_without_a_compiler_the_model_stays_and_the_client_reads_why(
    context: NodeContext, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("os.defpath", "/nowhere")
    texts: list[str] = []
    listening = replace(context, report_text=texts.append)
    assert torch_compile_model(listening, model=model, backend="inductor") is model
    assert texts == [
        "not compiled: backend: no compiler; got inductor on a machine without one, expected g++ or clang++ or c++ in"
        " PATH"
    ]


def test_cuda_graphs_need_cuda() -> None:
    missing = compiling.missing_compiler("cudagraphs", "cpu")
    assert missing == "backend: not available; got cudagraphs on cpu, expected a CUDA device"
    assert compiling.missing_compiler("cudagraphs", "cuda") is None


class Layers(torch.nn.Module):
    """The layers that choose kernels of their own on a CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = Conv2d(4, 64, 3, padding=1)  # more weights than cells: a matrix product
        self.linear = Linear(64, 8)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.linear(self.conv(value).movedim(1, -1))
        return found


def test_layers_leave_the_choice_of_kernels_to_the_compiler() -> None:
    targets: list[str] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        targets.extend(str(item.target) for item in graph.graph.nodes)
        return graph.forward

    network, value = Layers(), torch.rand(1, 4, 4, 4)
    with torch.no_grad():
        found = torch.compile(network, backend=backend)(value)
        assert torch.allclose(found, network(value), atol=1e-5)
    assert targets and not [target for target in targets if "mkldnn" in target or "unfold" in target]


@pytest.mark.slow
@pytest.mark.timeout(1200)  # g++ compiles some hundred files
def test_inductor_compiles_the_network(model: Model, sample: Callable[[Model], torch.Tensor]) -> None:
    if compiling.missing_compiler("inductor", "cpu") is not None:
        pytest.skip("there is no compiler on this machine")
    patched = model.clone()
    compile_networks(patched, backend="inductor")
    assert_close_to(sample(patched), sample(model))
    [wrapper] = patched.get_wrappers(APPLY_MODEL, compiling.KEY)
    assert isinstance(wrapper, compiling.CompiledNetworks) and wrapper.failure is None


@pytest.mark.slow
def test_inductor_compiles_these_layers() -> None:
    if compiling.missing_compiler("inductor", "cpu") is not None:
        pytest.skip("there is no compiler on this machine")
    executor, value = Executor(), torch.rand(1, 4, 4, 4)
    executor.class_obj.network = Layers()
    wrapper = compiling.CompiledNetworks(("network",), {"backend": "inductor"})
    with torch.no_grad():
        assert torch.allclose(wrapper(executor, value), executor(value), atol=1e-5)
    assert wrapper.failure is None

"""Each strategy on a small network: the same image, and nothing left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
import torch

from darkroom.contract.quality import STRATEGIES
from darkroom.engine.diffusion.denoiser import Denoiser
from darkroom.engine.diffusion.likeness import relative_error
from darkroom.engine.layers.unet_layers import CrossAttention
from darkroom.engine.models.load import LoadTypes
from darkroom.engine.models.random_weights import random_networks
from darkroom.engine.tuning.networks_in_use import NetworksInUse
from darkroom.engine.tuning.registry import make_strategies
from darkroom.engine.tuning.strategies import half_vae
from darkroom.engine.tuning.strategies.cuda_graph import CudaGraph, Graphs, graph_key
from darkroom.engine.tuning.strategies.half_vae import HalfVae
from darkroom.engine.tuning.strategies.prompt_cache import PromptCache, _cached, prompt_key
from darkroom.engine.tuning.strategy import (
    PROMPTS_OF_ROWS,
    MachineFacts,
    PromptRows,
    SamplingUse,
    Strategy,
    custom_code,
)
from tests.engine.tuning.replaying import Replaying


class Weights:
    """The members that strategies read of the weights of a MODEL."""

    has_fixed_addresses = can_have_fixed_addresses = True
    cast_bytes = 0

    def cast_directly(self) -> Callable[[], None]:
        return lambda: None


class Patcher:
    """The members that strategies read of a MODEL."""

    is_injected = False
    load_device = torch.device("cpu")
    patches: Mapping[str, object] = MappingProxyType({})

    def __init__(self, model: Any) -> None:
        self.model = model
        self.weights = Weights()
        self.object_patches: dict[str, Any] = {}
        self.patches: dict[str, Any] = {}

    def loaded_size(self) -> int:
        return 1

    def model_size(self) -> int:
        return 1

    def free_bytes(self) -> float:
        return 1e12


@pytest.fixture(scope="module")
def networks() -> tuple[Any, Any]:
    unet, _, vae = random_networks("small", 0, LoadTypes(torch.float32, torch.float32, torch.float32))
    return Denoiser(unet), vae


@pytest.fixture
def use(networks: tuple[Any, Any]) -> Iterator[SamplingUse]:
    yield SamplingUse(Patcher(networks[0]), networks[0], {"transformer_options": {}})
    assert not [name for name, module in networks[0].named_modules() if "forward" in vars(module)]


def call(use: SamplingUse, seed: int = 0, uuids: tuple[str, ...] = ("a", "b")) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.Generator().manual_seed(hash(uuids) % 1000)
    width: int = use.denoiser.diffusion_model.config.context_dim
    with torch.inference_mode():
        out: torch.Tensor = use.denoiser.apply_model(
            torch.randn(2, 4, 8, 8, generator=generator),
            torch.full((2,), 3.0),
            c_crossattn=torch.randn(2, 77, width, generator=tokens),
            transformer_options={"uuids": list(uuids), "cond_or_uncond": [0, 1]},
        )
    return out


def applied(strategy: Strategy, use: SamplingUse, work: Callable[[], torch.Tensor]) -> torch.Tensor:
    assert strategy.unfit(use) is None
    with torch.inference_mode():
        undo = strategy.apply(use)
    try:
        return work()
    finally:
        undo()


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("prompt_cache", 0.0),
        ("fused_qkv", 1e-5),
        ("fused_geglu", 1e-5),
        ("bfloat16_layers", 0.1),
    ],
)
def test_draws_what_the_plain_path_draws(name: str, most: float, use: SamplingUse) -> None:
    strategy, plain = make_strategies()[name], call(use)
    found = applied(strategy, use, lambda: (call(use, 1), call(use))[1])
    assert relative_error(found, plain) <= most
    assert torch.equal(call(use), plain)


def test_keys_and_values_are_of_the_prompt_at_hand(use: SamplingUse) -> None:
    others = [("a", "b"), ("c", "b"), ("b", "a"), ("a", "b")]
    plain = [call(use, 0, uuids) for uuids in others]
    undo = PromptCache().apply(use)
    found = [call(use, 0, uuids) for uuids in others]
    undo()
    assert all(torch.equal(one, other) for one, other in zip(found, plain, strict=True))


def test_a_batch_of_several_runs_computes_keys_and_values_once_per_prompt(use: SamplingUse) -> None:
    """Each run's are of its own rows: whichever company and padding it has, its rows have the same ones."""
    attention = next(module for module in use.network.modules() if type(module) is CrossAttention)
    dim = attention.to_q.weight.shape[1]
    context = torch.randn(5, 7, attention.to_k.weight.shape[1])  # [B, T, D]
    x = torch.randn(5, 16, dim)
    rows_seen: list[int] = []
    hook = attention.to_k.register_forward_hook(lambda layer, given, out: rows_seen.append(given[0].shape[0]))
    first, second = PromptRows(2, ("a", "b"), (0, 1)), PromptRows(1, ("c",), (0,))
    last = PromptRows(2, (None, "d"), (0, 1))  # of a condition without a name
    forward = _cached(attention)

    def options(*parts: PromptRows) -> dict[str, Any]:
        return {PROMPTS_OF_ROWS: parts}

    with torch.inference_mode():
        plain = attention(x, context)
        rows_seen.clear()
        together = forward(x, context, transformer_options=options(first, second, last))
        assert rows_seen == [2, 1, 2]
        padded = context[[2, 0, 1, 1]]
        joined = forward(x[[2, 0, 1, 1]], padded, transformer_options=options(second, first))
        again = forward(x, context, transformer_options=options(first, second, last))
    hook.remove()
    assert rows_seen == [2, 1, 2, 2], "only the rows without a name are computed again"
    assert relative_error(together, plain) < 1e-6 and torch.equal(together, again)
    assert relative_error(joined, plain[[2, 0, 1, 1]]) < 1e-6


def test_conditions_without_a_name_are_not_remembered() -> None:
    context = torch.zeros(2, 77, 8)
    assert prompt_key({"uuids": [None, "b"], "cond_or_uncond": [0, 1]}, context) is None
    assert prompt_key({"uuids": ["a"], "cond_or_uncond": [0, 1]}, context) is None
    assert prompt_key({}, context) is None


@pytest.mark.parametrize(
    "options",
    [
        {"model_function_wrapper": print},
        {"context_handler": 1},
        {"transformer_options": {"wrappers": {"diffusion_model": {"pack": [print]}}}},
        {"transformer_options": {"patches": {"attn2_patch": [print]}}},
        {"transformer_options": {"patches_replace": {"attn1": {("input", 1): print}}}},
        {"transformer_options": {"attention_slices": 2}},
    ],
)
def test_nodes_that_reach_into_the_network_keep_it_plain(options: dict[str, Any], use: SamplingUse) -> None:
    changed = replace(use, options=options)
    assert custom_code(changed) is not None
    for name in ("cuda_graph", "prompt_cache", "fused_qkv", "compiled_blocks", "token_merging"):
        assert make_strategies()[name].unfit(changed) is not None


@pytest.mark.parametrize("name", ["cuda_graph", "step_graph"])
def test_a_network_that_reads_the_noise_levels_of_its_run_has_no_graph(name: str) -> None:
    class Scheduled(torch.nn.Linear):
        depends_on_schedule = False

    network = Scheduled(2, 2)
    denoiser = Denoiser(network)
    use = SamplingUse(Patcher(denoiser), denoiser, {"transformer_options": {}})
    assert make_strategies()[name].unfit(use) != "the network depends on all noise levels"
    network.depends_on_schedule = True
    assert make_strategies()[name].unfit(use) == "the network depends on all noise levels"


@pytest.mark.parametrize("name", ["fused_qkv", "bfloat16_layers"])
def test_weights_that_are_cast_for_each_call_are_not_computed_with_as_they_are(name: str) -> None:
    unet, _, _ = random_networks("small", 0, LoadTypes(torch.float32, torch.float32, torch.float32))
    for weight in unet.parameters():
        weight.data = weight.data.to(torch.float8_e4m3fn)
    denoiser = Denoiser(unet)
    denoiser.manual_cast_dtype = torch.float32
    use = SamplingUse(Patcher(denoiser), denoiser, {"transformer_options": {}})
    assert "of this kind" in str(make_strategies()[name].unfit(use))


def test_a_change_that_fails_leaves_the_network_as_it_was(use: SamplingUse) -> None:
    class Failing(Strategy):
        name = "failing"

        def apply(self, use: SamplingUse) -> Any:
            raise RuntimeError("no kernel")

    networks = NetworksInUse()
    with pytest.raises(RuntimeError), networks.changed(use, (PromptCache(), Failing())):
        pass
    networks.check_integrity()


def test_runs_with_other_strategies_share_the_plain_network(use: SamplingUse) -> None:
    networks, own = NetworksInUse(), PromptCache()
    with networks.changed(use, (own,)) as first:
        with networks.changed(use, (own,)) as second:
            assert first == second == ("prompt_cache",)
        with networks.changed(use, ()) as third:
            assert third == ()
            assert not [module for module in use.network.modules() if "forward" in vars(module)]
    networks.check_integrity()


def test_a_run_that_joins_finds_fit_what_the_first_one_found_fit(use: SamplingUse) -> None:
    networks, own = NetworksInUse(), PromptCache()
    with networks.changed(use, (own,)):
        assert own.unfit(use) is not None
        with networks.plain(use):
            assert own.unfit(use) is None
        assert [module for module in use.network.modules() if "forward" in vars(module)]
    with networks.plain(use):
        assert own.unfit(use) is None
    networks.check_integrity()


def test_a_run_that_joins_finds_the_functions_of_a_vae_as_the_first_one_did(networks: tuple[Any, Any]) -> None:
    vae, in_use, own = networks[1], NetworksInUse(), HalfVae()
    use = SamplingUse(Patcher(vae), vae, {})
    with in_use.changed(use, (own,)) as first:
        decode = vars(vae)["decode"]
        with in_use.plain(use):
            assert own.unfit(use) is None and "decode" not in vars(vae)
        assert vars(vae)["decode"] is decode
        with in_use.changed(use, (own,)) as second:
            assert first == second == ("half_vae",)
    assert "decode" not in vars(vae)
    in_use.check_integrity()


# --- what needs a GPU, by its parts ----------------------------------------------------------------------------------


def test_a_graph_computes_from_the_inputs_of_each_call(use: SamplingUse) -> None:
    recorder = Replaying()
    strategy, plain = CudaGraph(Graphs(recorder)), [call(use, 0), call(use, 1, ("c", "d"))]
    undo = strategy.apply(use)
    found = [call(use, 0), call(use, 1, ("c", "d"))]
    undo()
    assert recorder.num_recorded == 1
    assert all(torch.equal(one, other) for one, other in zip(found, plain, strict=True))


def test_a_call_with_an_option_that_is_no_plain_value_has_no_graph() -> None:
    tensors = {"x": torch.zeros(1)}
    known = {"uuids": ["a"], "sigmas": torch.zeros(1), "sample_sigmas": torch.zeros(3)}
    assert graph_key(tensors, {"frames": 2}, known) is not None
    assert graph_key(tensors, {}, {**known, "layers": 3}) != graph_key(tensors, {}, {**known, "layers": 4})
    assert graph_key(tensors, {}, {**known, "layers": [3]}) is None
    assert graph_key(tensors, {"reference": [torch.zeros(1)]}, known) is None


def test_a_graph_is_recorded_anew_when_compiled_blocks_have_taken_their_place(use: SamplingUse) -> None:
    recorder, plain = Replaying(), call(use)
    undo = CudaGraph(Graphs(recorder)).apply(use)
    first = call(use)
    use.evaluation.num_compiled = 3
    second = call(use)
    undo()
    assert recorder.num_recorded == 2 and torch.equal(first, plain) and torch.equal(second, plain)


def test_graphs_are_released_by_age_and_by_memory() -> None:
    graphs = Graphs(Replaying(), max_graphs=2)
    inputs = {"x": torch.ones(2)}
    for key in ("a", "b", "a", "c"):
        found = graphs.run(key, inputs, lambda given: given["x"] * 2, 100)
        assert found is not None and torch.equal(found, torch.full((2,), 2.0))
    assert list(graphs._graphs) == ["a", "c"]
    assert graphs.run("d", inputs, lambda given: given["x"], 5) is None
    assert len(graphs) == 0
    graphs.release()


def test_what_cannot_be_captured_is_computed_as_it_is(use: SamplingUse) -> None:
    class Refusing(Replaying):
        def record(self, work: Callable[[], torch.Tensor]) -> Any:
            raise RuntimeError("operation not permitted when stream is capturing")

    plain = call(use)
    assert torch.equal(applied(CudaGraph(Graphs(Refusing())), use, lambda: call(use)), plain)


def test_a_vae_that_overflows_in_float16_decodes_in_its_own_type(networks: tuple[Any, Any]) -> None:
    vae = networks[1]
    latent = torch.randn(1, 4, 4, 4, generator=torch.Generator().manual_seed(0))
    use = SamplingUse(Patcher(vae), vae, {})
    with torch.inference_mode():
        plain = vae.decode(latent)
        undo = HalfVae().apply(use)
        near, far = vae.decode(latent), vae.decode(latent * 1e6)
        undo()
        assert relative_error(near.float(), plain) < 0.01
        assert torch.isfinite(far).all()
    assert "decode" not in vars(vae)


class CountingHalves:
    """The number of float16 copies that were made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num_made = 0
        made = half_vae._in_float16

        def counted(network: torch.nn.Module) -> torch.nn.Module:
            self.num_made += 1
            return made(network)

        monkeypatch.setattr(half_vae, "_in_float16", counted)


def test_a_float16_vae_is_kept_while_its_weights_are_the_same_and_memory_allows(
    networks: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    vae, halves, strategy = networks[1], CountingHalves(monkeypatch), HalfVae()
    use = SamplingUse(Patcher(vae), vae, {})
    latent = torch.zeros(1, 4, 2, 2)

    def decode() -> int:
        with torch.inference_mode():
            undo = strategy.apply(use)
            assert vae.decode(latent).dtype == torch.float16
            undo()
        return halves.num_made

    assert decode() == 1 == decode(), "one copy for two decodings"
    weight = next(iter(vae.parameters()))
    plain = weight.data
    weight.data = plain.clone()
    assert decode() == 2 == decode(), "with its weights of now"
    strategy.release()
    assert decode() == 3, "what was released is made again"
    weight.data = plain
    monkeypatch.setattr(use.patcher, "free_bytes", lambda: 1.0)
    assert (decode(), decode()) == (4, 5), "nothing is kept where memory is short"


def test_functions_of_other_modules_are_no_part_of_a_float16_vae(networks: tuple[Any, Any]) -> None:
    vae = networks[1]
    norms = [module for module in vae.modules() if isinstance(module, torch.nn.GroupNorm)]
    use = SamplingUse(Patcher(vae), vae, {})
    norms[0].__dict__["forward"] = lambda x: torch.full_like(x, float("nan"))
    try:
        with torch.inference_mode():
            undo = HalfVae().apply(use)
            assert torch.isfinite(vae.decode(torch.zeros(1, 4, 2, 2))).all()
            undo()
    finally:
        del norms[0].__dict__["forward"]


def test_every_strategy_has_its_name_and_says_what_it_lacks() -> None:
    machine = MachineFacts("cpu", "a processor", num_cores=torch.get_num_threads())
    made = make_strategies()
    assert tuple(made) == STRATEGIES == tuple(strategy.name for strategy in made.values())
    missing = {name for name, strategy in made.items() if strategy.missing(machine) is not None}
    assert {"cuda_graph", "threads", "nhwc_group_norm", "half_vae", "fp8_linear"} <= missing

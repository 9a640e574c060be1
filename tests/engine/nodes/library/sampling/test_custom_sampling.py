"""Custom sampling and model patches on a tiny checkpoint: what a workflow would wire, called node by node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from darkroom.engine.cancel import CancelToken
from darkroom.engine.errors import Interrupted
from darkroom.engine.families.sd3 import nodes as sd3_nodes
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.library.conditioning.text import clip_text_encode
from darkroom.engine.nodes.library.sampling import (
    attention_guidance,
    context_windows,
    custom_sampling,
    guidance,
    model_sampling,
    samplers,
    step_cache,
    unet_patches,
)
from darkroom.engine.nodes.library.sampling.sampling import ksampler
from darkroom.engine.nodes.library.sampling.sigmas import basic_scheduler
from tests.engine.nodes.small_store import small_store
from tests.tiny_checkpoint import make_tiny_checkpoint

SEED = 3


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> NodeContext:
    models = tmp_path_factory.mktemp("models")
    make_tiny_checkpoint(models / "checkpoints")
    store = small_store(models)
    return NodeContext("1", "p", CancelToken(), lambda value, total: None, None, store, None)


@pytest.fixture(scope="module")
def inputs(context: NodeContext) -> dict[str, Any]:
    model, clip, _ = context.models.checkpoint("tiny.safetensors")
    prompts = [clip_text_encode(context, text=text, clip=clip) for text in ("a fox", "blurry", "")]
    return {"model": model, "positive": prompts[0], "negative": prompts[1], "empty": prompts[2]}


def _latent(batch: int = 1, side: int = 8) -> Any:
    return {"samples": torch.zeros(batch, 4, side, side)}


def _sample(context: NodeContext, inputs: dict[str, Any], guider: Any, noise: Any = None, **changes: Any) -> Any:
    given = {
        "noise": noise or custom_sampling.random_noise(context, noise_seed=SEED),
        "guider": guider,
        "sampler": samplers.ksampler_select(context, sampler_name="euler"),
        "sigmas": basic_scheduler(context, model=inputs["model"], scheduler="normal", steps=3),
        "latent_image": _latent(),
    }
    return custom_sampling.sampler_custom_advanced(context, **{**given, **changes})


def _cfg(context: NodeContext, inputs: dict[str, Any], cfg: float = 4.0, model: Any = None) -> Any:
    return custom_sampling.cfg_guider(
        context, model=model or inputs["model"], positive=inputs["positive"], negative=inputs["negative"], cfg=cfg
    )


def test_parts_put_together_are_a_ksampler(context: NodeContext, inputs: dict[str, Any]) -> None:
    output, denoised = _sample(context, inputs, _cfg(context, inputs))
    whole = ksampler(
        context, model=inputs["model"], seed=SEED, steps=3, cfg=4.0, sampler_name="euler", scheduler="normal",
        positive=inputs["positive"], negative=inputs["negative"], latent_image=_latent(), denoise=1.0,
    )  # fmt: skip
    assert torch.equal(output["samples"], whole["samples"])
    assert torch.allclose(denoised["samples"], output["samples"], atol=1e-4)  # the last step ends at its prediction
    one_node, _ = custom_sampling.sampler_custom(
        context, model=inputs["model"], add_noise=True, noise_seed=SEED, cfg=4.0, positive=inputs["positive"],
        negative=inputs["negative"], sampler=samplers.ksampler_select(context, sampler_name="euler"),
        sigmas=basic_scheduler(context, model=inputs["model"], scheduler="normal", steps=3), latent_image=_latent(),
    )  # fmt: skip
    assert torch.equal(one_node["samples"], whole["samples"])


def test_guiders_agree_where_their_formulas_do(context: NodeContext, inputs: dict[str, Any]) -> None:
    model, positive, negative = inputs["model"], inputs["positive"], inputs["negative"]
    basic = custom_sampling.basic_guider(context, model=model, conditioning=positive)
    unguided, _ = _sample(context, inputs, basic)
    at_one, _ = _sample(context, inputs, _cfg(context, inputs, cfg=1.0))
    assert torch.allclose(unguided["samples"], at_one["samples"], atol=1e-4)
    guided, _ = _sample(context, inputs, _cfg(context, inputs))
    for style in ("regular", "nested"):
        dual = custom_sampling.dual_cfg_guider(
            context, model=model, cond1=positive, cond2=positive, negative=negative, cfg_conds=2.0,
            cfg_cond2_negative=4.0, style=style,
        )  # fmt: skip
        assert torch.allclose(_sample(context, inputs, dual)[0]["samples"], guided["samples"], atol=1e-3)
    perp = custom_sampling.perp_neg_guider(
        context, model=model, positive=positive, negative=positive, empty_conditioning=negative, cfg=4.0, neg_scale=1.0
    )
    assert torch.allclose(_sample(context, inputs, perp)[0]["samples"], guided["samples"], atol=1e-3)


def test_no_noise_and_added_noise_make_the_same_start(context: NodeContext, inputs: dict[str, Any]) -> None:
    sigmas = basic_scheduler(context, model=inputs["model"], scheduler="normal", steps=8)[-4:]
    noise = custom_sampling.random_noise(context, noise_seed=SEED)
    noisy = custom_sampling.add_noise(
        context, model=inputs["model"], noise=noise, sigmas=sigmas, latent_image=_latent()
    )
    none = custom_sampling.disable_noise(context)
    guider = _cfg(context, inputs)
    late, _ = _sample(context, inputs, guider, noise=none, sigmas=sigmas, latent_image=noisy)
    whole, _ = _sample(context, inputs, guider, noise=noise, sigmas=sigmas)
    assert torch.allclose(late["samples"], whole["samples"], atol=1e-4)


def test_without_levels_the_latent_stays(context: NodeContext, inputs: dict[str, Any]) -> None:
    latent = {"samples": torch.rand(1, 4, 8, 8)}
    output, denoised = _sample(
        context, inputs, _cfg(context, inputs), sigmas=torch.FloatTensor([]), latent_image=latent
    )
    assert torch.equal(output["samples"], latent["samples"]) and denoised is output


def test_a_cancelled_run_stops_within_a_step(context: NodeContext, inputs: dict[str, Any]) -> None:
    cancel = CancelToken()
    cancel.cancel()
    cancelled = NodeContext("1", "p", cancel, lambda value, total: None, None, context.models, None)
    with pytest.raises(Interrupted):
        _sample(cancelled, inputs, _cfg(context, inputs))


SAMPLER_NODES = {
    "lms": lambda c, m: samplers.lms(c, order=2),
    "dpmpp_2m_sde": lambda c, m: samplers.dpmpp_2m_sde(c, solver_type="heun", eta=0.5, s_noise=0.9, noise_device="cpu"),
    "dpm_adaptive": lambda c, m: samplers.dpm_adaptive(c, order=2, rtol=1.0, atol=1.0),
    "er_sde": lambda c, m: samplers.er_sde(c, solver_type="Reverse-time SDE", max_stage=2, eta=0.5),
    "sa_solver": lambda c, m: samplers.sa_solver(c, model=m, use_pece=True, simple_order_2=True),
    "euler_cfg_pp": lambda c, m: samplers.euler_cfg_pp(c, version="alternative"),
}


@pytest.mark.parametrize("name", SAMPLER_NODES)
def test_sampler_nodes_pass_their_options_on(context: NodeContext, inputs: dict[str, Any], name: str) -> None:
    sampler = SAMPLER_NODES[name](context, inputs["model"])
    output, _ = _sample(context, inputs, _cfg(context, inputs), sampler=sampler)
    assert bool(output["samples"].isfinite().all())


def test_the_ode_of_er_sde_draws_no_noise(context: NodeContext, inputs: dict[str, Any]) -> None:
    ode = samplers.er_sde(context, solver_type="ODE", max_stage=3, eta=1.0, s_noise=1.0)
    still = samplers.er_sde(context, solver_type="Reverse-time SDE", max_stage=3, eta=0.0, s_noise=1.0)
    first, second = (_sample(context, inputs, _cfg(context, inputs), sampler=item)[0] for item in (ode, still))
    assert torch.equal(first["samples"], second["samples"])


def test_an_upscaling_sampler_ends_larger(context: NodeContext, inputs: dict[str, Any]) -> None:
    sampler = samplers.lcm_upscale(context, scale_ratio=2.0, scale_steps=2, upscale_method="bislerp")
    output, _ = _sample(context, inputs, _cfg(context, inputs), sampler=sampler)
    assert output["samples"].shape == (1, 4, 16, 16)


PATCHES = {
    "rescale": lambda c, m, i: guidance.rescale_cfg(c, model=m, multiplier=0.7),
    "renorm": lambda c, m, i: guidance.renorm_cfg(c, model=m, cfg_trunc=100.0, renorm_cfg=0.5),
    "perp_neg": lambda c, m, i: guidance.perp_neg(c, model=m, empty_conditioning=i["empty"], neg_scale=1.0),
    "zero_star": lambda c, m, i: guidance.cfg_zero_star(c, model=m),
    "cfg_norm": lambda c, m, i: guidance.cfg_norm(c, model=m, strength=0.9),
    "fresca": lambda c, m, i: guidance.fresca(c, model=m, scale_low=0.5, scale_high=2.0, freq_cutoff=2),
    "apg": lambda c, m, i: guidance.apg(c, model=m, eta=0.5, norm_threshold=2.0, momentum=0.5),
    "tcfg": lambda c, m, i: guidance.tcfg(c, model=m),
    "mahiro": lambda c, m, i: guidance.mahiro(c, model=m),
    "epsilon": lambda c, m, i: guidance.epsilon_scaling(c, model=m, scaling_factor=1.1),
    "sag": lambda c, m, i: attention_guidance.self_attention_guidance(c, model=m, scale=0.5, blur_sigma=2.0),
    "pag": lambda c, m, i: attention_guidance.perturbed_attention(c, model=m, scale=3.0),
    "freeu": lambda c, m, i: unet_patches.freeu(c, model=m),
    "freeu_v2": lambda c, m, i: unet_patches.freeu_v2(c, model=m),
    "tome": lambda c, m, i: unet_patches.tome_patch_model(c, model=m, ratio=0.5),
    "downscale": lambda c, m, i: unet_patches.patch_model_add_downscale(
        c, model=m, end_percent=1.0, downscale_method="bicubic", upscale_method="bicubic"
    ),
    "self_attention": lambda c, m, i: unet_patches.unet_self_attention_multiply(c, model=m, q=1.5),
    "cross_attention": lambda c, m, i: unet_patches.unet_cross_attention_multiply(c, model=m, out=0.5),
    "temporal": lambda c, m, i: unet_patches.unet_temporal_attention_multiply(c, model=m, self_structural=0.5),
    "discrete": lambda c, m, i: model_sampling.model_sampling_discrete(c, model=m, sampling="v_prediction", zsnr=True),
    "lcm": lambda c, m, i: model_sampling.model_sampling_discrete(c, model=m, sampling="lcm", zsnr=False),
    "edm": lambda c, m, i: model_sampling.model_sampling_continuous_edm(c, model=m, sampling="edm"),
    "flow": lambda c, m, i: sd3_nodes.model_sampling_sd3(c, model=m, shift=3.0),
    "bf16": lambda c, m, i: model_sampling.model_compute_dtype(c, model=m, dtype="bf16"),
    "easy_cache": lambda c, m, i: step_cache.easy_cache(
        c, model=m, reuse_threshold=3.0, start_percent=0.0, end_percent=1.0
    ),
    "lazy_cache": lambda c, m, i: step_cache.lazy_cache(
        c, model=m, reuse_threshold=3.0, start_percent=0.0, end_percent=1.0
    ),
}


def test_guidance_is_rescaled_on_predictions_where_the_model_is_a_flow(
    context: NodeContext, inputs: dict[str, Any]
) -> None:
    x, cond, uncond = torch.randn(3, 1, 4, 8, 8, generator=torch.manual_seed(0))
    arguments = {"input": x, "sigma": torch.full([1], 0.5), "cond_scale": 5.0}
    arguments |= {"cond_denoised": cond, "uncond_denoised": uncond}
    flow = sd3_nodes.model_sampling_sd3(context, model=inputs["model"], shift=3.0)
    rescaled = {
        name: guidance.rescale_cfg(context, model=model, multiplier=1.0).model_options["sampler_cfg_function"](
            arguments
        )
        for name, model in (("flow", flow), ("eps", inputs["model"]))
    }
    assert torch.allclose((x - rescaled["flow"]).std(), cond.std(), rtol=1e-4)
    assert not torch.allclose((x - rescaled["eps"]).std(), cond.std(), rtol=1e-2)


def _steps(context: NodeContext, inputs: dict[str, Any], number: int, **changes: Any) -> torch.Tensor:
    sigmas = basic_scheduler(context, model=inputs["model"], scheduler="normal", steps=number)
    guider = _cfg(context, inputs, **changes)
    sampled, _ = _sample(context, inputs, guider, sigmas=sigmas, latent_image=_latent(side=16))
    latent: torch.Tensor = sampled["samples"]
    return latent


@pytest.fixture(scope="module")
def unpatched(context: NodeContext, inputs: dict[str, Any]) -> dict[int, torch.Tensor]:
    """Return the results of three steps and of one."""
    return {number: _steps(context, inputs, number) for number in (3, 1)}


@pytest.mark.parametrize("name", PATCHES)
def test_a_patch_changes_its_clone_and_nothing_else(
    context: NodeContext, inputs: dict[str, Any], unpatched: dict[int, torch.Tensor], name: str
) -> None:
    patched = PATCHES[name](context, inputs["model"], inputs)
    changed = _steps(context, inputs, 3, model=patched)
    assert bool(changed.isfinite().all())
    assert not torch.equal(changed, unpatched[3])
    assert torch.equal(_steps(context, inputs, 1), unpatched[1])


def test_batches_in_windows_are_the_batch(context: NodeContext, inputs: dict[str, Any]) -> None:
    patched = context_windows.context_windows_manual(
        context, model=inputs["model"], context_length=2, context_overlap=1, context_schedule="standard_static",
        fuse_method="flat",
    )  # fmt: skip
    latent = _latent(batch=3)
    windowed, _ = _sample(context, inputs, _cfg(context, inputs, model=patched), latent_image=latent)
    whole, _ = _sample(context, inputs, _cfg(context, inputs), latent_image=latent)
    assert torch.allclose(windowed["samples"], whole["samples"], atol=1e-3)


def test_a_cached_step_spares_evaluations(context: NodeContext, inputs: dict[str, Any]) -> None:
    calls: list[int] = []
    counted = inputs["model"].clone()

    def counting(apply: Callable[..., Any], call: dict[str, Any]) -> Any:
        calls.append(1)
        return apply(call["input"], call["timestep"], **call["c"])

    counted.set_model_unet_function_wrapper(counting)
    cached = step_cache.lazy_cache(context, model=counted, reuse_threshold=3.0, start_percent=0.0, end_percent=1.0)
    sigmas = basic_scheduler(context, model=counted, scheduler="normal", steps=6)
    _sample(context, inputs, _cfg(context, inputs, model=counted), sigmas=sigmas)
    num_plain = len(calls)
    _sample(context, inputs, _cfg(context, inputs, model=cached), sigmas=sigmas)
    assert num_plain == 6 and len(calls) - num_plain < num_plain

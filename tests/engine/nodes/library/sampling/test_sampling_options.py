"""Options of sampling on tiny checkpoints: guidance by level and by two models, attention, noise."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from darkroom.engine.cancel import CancelToken
from darkroom.engine.families.sd3 import nodes as sd3_nodes
from darkroom.engine.models.random_weights import write_random_checkpoint
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.library.conditioning.scaling import conditioning_multiply
from darkroom.engine.nodes.library.conditioning.text import clip_text_encode
from darkroom.engine.nodes.library.sampling import custom_sampling, model_guidance, model_options, samplers
from darkroom.engine.nodes.library.sampling.context_windows import context_windows_manual
from darkroom.engine.nodes.library.sampling.dual_model_guider import dual_model_guider
from darkroom.engine.nodes.library.sampling.sigmas import basic_scheduler
from darkroom.engine.nodes.library.sampling.stochastic_samplers import sampler_lcm, sampler_seeds_2
from tests.engine.nodes.small_store import small_store
from tests.tiny_checkpoint import make_tiny_checkpoint


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> NodeContext:
    models = tmp_path_factory.mktemp("models")
    make_tiny_checkpoint(models / "checkpoints")
    write_random_checkpoint(models / "checkpoints" / "other.safetensors", "small", seed=9)
    return NodeContext("1", "p", CancelToken(), lambda value, total: None, None, small_store(models), None)


@pytest.fixture(scope="module")
def inputs(context: NodeContext) -> dict[str, Any]:
    model, clip, _ = context.models.checkpoint("tiny.safetensors")
    other, _, _ = context.models.checkpoint("other.safetensors")
    positive, negative = (clip_text_encode(context, text=text, clip=clip) for text in ("a fox", "blurry"))
    return {"model": model, "other": other, "positive": positive, "negative": negative}


def _sampled(
    context: NodeContext,
    inputs: dict[str, Any],
    *,
    cfg: float = 4.0,
    guider: Any = None,
    batch: int = 1,
    **changes: Any,
) -> torch.Tensor:
    model = changes.pop("model", inputs["model"])
    own = custom_sampling.cfg_guider(
        context, model=model, positive=inputs["positive"], negative=inputs["negative"], cfg=cfg
    )
    given = {
        "noise": custom_sampling.random_noise(context, noise_seed=3),
        "sampler": samplers.ksampler_select(context, sampler_name="euler"),
        "sigmas": basic_scheduler(context, model=inputs["model"], scheduler="normal", steps=3),
        "latent_image": {"samples": torch.zeros(batch, 4, 8, 8)},
    }
    output, _ = custom_sampling.sampler_custom_advanced(context, guider=guider or own, **{**given, **changes})
    found: torch.Tensor = output["samples"]
    return found


def _guider(context: NodeContext, inputs: dict[str, Any], cfg: float, **changes: Any) -> Any:
    return dual_model_guider(
        context, model=inputs["model"], positive=inputs["positive"], negative=inputs["negative"], cfg=cfg, **changes
    )


def test_the_scale_is_overridden_in_a_range_and_the_last_node_counts(
    context: NodeContext, inputs: dict[str, Any]
) -> None:
    def overridden(model: Any, cfg: float, start: float = 0.0, end: float = 1.0) -> Any:
        return model_guidance.cfg_override(context, model=model, cfg=cfg, start_percent=start, end_percent=end)

    usual = _sampled(context, inputs)
    always = _sampled(context, inputs, cfg=9.0, model=overridden(inputs["model"], 4.0))
    assert torch.equal(always, usual)
    never = _sampled(context, inputs, model=overridden(inputs["model"], 9.0, 1.0, 1.0))
    assert torch.equal(never, usual)
    late = _sampled(context, inputs, model=overridden(inputs["model"], 9.0, 0.5))
    assert not torch.equal(late, usual)
    twice = overridden(overridden(inputs["model"], 9.0), 4.0)
    assert torch.equal(_sampled(context, inputs, cfg=2.0, model=twice), usual)


def test_two_models_of_the_same_weights_guide_as_one(context: NodeContext, inputs: dict[str, Any]) -> None:
    usual = _sampled(context, inputs)
    alone = _sampled(context, inputs, guider=_guider(context, inputs, 4.0))
    clone = _sampled(context, inputs, guider=_guider(context, inputs, 4.0, model_negative=inputs["model"].clone()))
    assert torch.equal(alone, usual)
    assert torch.allclose(clone, usual, atol=2e-3)  # the sides are evaluated one by one


def test_a_scale_of_one_leaves_the_negative_side_out_whatever_a_patch_asks_for(
    context: NodeContext, inputs: dict[str, Any]
) -> None:
    model = inputs["model"].clone()
    model.set_model_sampler_cfg_function(lambda args: args["uncond"] * torch.nan, disable_cfg1_optimization=True)
    guider = _guider(context, {**inputs, "model": model}, 1.0, model_negative=model)
    assert _sampled(context, inputs, guider=guider).isfinite().all()


def test_another_model_predicts_the_negative_side(context: NodeContext, inputs: dict[str, Any]) -> None:
    def both(cfg: float) -> torch.Tensor:
        return _sampled(context, inputs, guider=_guider(context, inputs, cfg, model_negative=inputs["other"]))

    # At a scale of 0 only the negative side is left, which is that model's.
    swapped = {**inputs, "model": inputs["other"], "positive": inputs["negative"]}
    assert torch.allclose(both(0.0), _sampled(context, swapped, cfg=1.0), atol=1e-4)
    assert torch.allclose(both(1.0), _sampled(context, inputs, cfg=1.0), atol=1e-5)
    assert not torch.allclose(both(4.0), _sampled(context, inputs), atol=1e-2)


@pytest.mark.parametrize("name", ["nag", "tsr"])
def test_a_patch_of_guidance_changes_its_clone_alone(context: NodeContext, inputs: dict[str, Any], name: str) -> None:
    before = _sampled(context, inputs)
    patched = (
        model_guidance.normalized_attention_guidance(context, model=inputs["model"])
        if name == "nag"
        else model_guidance.temporal_score_rescaling(context, model=inputs["model"], tsr_k=0.5, tsr_sigma=1.0)
    )
    changed = _sampled(context, inputs, model=patched)
    assert bool(changed.isfinite().all()) and not torch.equal(changed, before)
    assert torch.equal(_sampled(context, inputs), before)


def test_lcm_scales_and_clamps_its_noise(context: NodeContext, inputs: dict[str, Any]) -> None:
    def drawn(**options: float) -> torch.Tensor:
        return _sampled(context, inputs, sampler=sampler_lcm(context, **options))

    usual = drawn()
    assert torch.equal(usual, _sampled(context, inputs, sampler=samplers.ksampler_select(context, sampler_name="lcm")))
    assert not torch.equal(drawn(s_noise=0.5, s_noise_end=0.5), usual)
    assert not torch.equal(drawn(noise_clip_std=0.5), usual)
    assert torch.equal(drawn(noise_clip_std=10.0), usual)


def test_seeds_2_of_phi_2_at_the_whole_step_is_heuns_exponential_form(
    context: NodeContext, inputs: dict[str, Any]
) -> None:
    node = sampler_seeds_2(context, solver_type="phi_2", eta=0.0, s_noise=1.0, r=1.0)
    named = samplers.ksampler_select(context, sampler_name="exp_heun_2_x0")
    assert torch.equal(_sampled(context, inputs, sampler=node), _sampled(context, inputs, sampler=named))


def test_only_flows_have_a_scale_of_noise(context: NodeContext, inputs: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="model: only flows have a scale of noise; got EpsDiscrete"):
        model_options.model_noise_scale(context, model=inputs["model"], noise_scale=2.0)
    flow = sd3_nodes.model_sampling_sd3(context, model=inputs["model"], shift=3.0)
    scaled = model_options.model_noise_scale(context, model=flow, noise_scale=2.0).get_model_object("model_sampling")
    assert (scaled.noise_scale, flow.get_model_object("model_sampling").noise_scale) == (2.0, 1.0)
    noise, level = torch.ones(1, 4, 2, 2), torch.tensor(0.25)
    assert torch.allclose(scaled.noise_scaling(level, noise, torch.zeros(1, 4, 2, 2)), torch.tensor(0.5))


def test_positions_are_scaled_in_a_clone_alone(context: NodeContext, inputs: dict[str, Any]) -> None:
    patched = model_options.scale_rope(context, model=inputs["model"], scale_x=0.5, shift_t=2.0)
    found = patched.model_options["transformer_options"]["rope_options"]
    assert (found["scale_x"], found["scale_y"], found["shift_t"]) == (0.5, 1.0, 2.0)
    assert "rope_options" not in inputs["model"].model_options["transformer_options"]


def test_a_condition_is_multiplied_with_its_pooled_output(context: NodeContext) -> None:
    given: Any = [
        [torch.ones(1, 2, 3), {"pooled_output": torch.ones(1, 4), "strength": 0.5}],
        [torch.ones(1, 2, 3), {}],
    ]
    scaled: Any = conditioning_multiply(context, conditioning=given, multiplier=1.5)
    first, second = scaled
    assert first[0].eq(1.5).all() and first[1]["pooled_output"].eq(1.5).all() and first[1]["strength"] == 0.5
    assert second[0].eq(1.5).all() and given[0][1]["pooled_output"].eq(1.0).all()


def test_shuffled_noise_repeats_in_the_windows_of_a_batch(context: NodeContext, inputs: dict[str, Any]) -> None:
    def drawn(*, freenoise: bool) -> torch.Tensor:
        windows = context_windows_manual(
            context, model=inputs["model"], context_length=2, context_overlap=1, fuse_method="flat", freenoise=freenoise
        )
        return _sampled(context, inputs, model=windows, batch=4)

    shuffled, usual = drawn(freenoise=True), drawn(freenoise=False)
    # Stretches of one item: each behind the first two repeats the one two before it.
    assert torch.allclose(shuffled[2], shuffled[0], atol=1e-3) and not torch.allclose(usual[2], usual[0], atol=1e-3)


@pytest.mark.parametrize("text", ["0, x", "-1", "4", "0,,1"])
def test_positions_that_no_window_has_are_refused(text: str) -> None:
    check = context_windows_manual.check
    assert check is not None
    problem = check(None, context_length=4, cond_retain_index_list=text)
    assert problem is not None and problem.startswith("cond_retain_index_list: no positions in a window; got ")

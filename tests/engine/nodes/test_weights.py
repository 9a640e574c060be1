"""Nodes that change weights or add some, on a small checkpoint."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from darkroom.engine.errors import BadModelFile
from darkroom.engine.families.ltx_video.nodes.ic_lora import get_ic_lora_parameters
from darkroom.engine.families.registry import default_family
from darkroom.engine.formats.safetensors_file import SafetensorsFile, write_safetensors
from darkroom.engine.models.kinds.controlnet import ControlNetModel
from darkroom.engine.models.kinds.controlnet_value import broadcast_image_to
from darkroom.engine.models.patching.hooks import HookKeyframe, HookKeyframeGroup
from darkroom.engine.models.random_weights import write_random_checkpoint
from darkroom.engine.models.store import ModelStore
from darkroom.engine.nodes.library.conditioning.controlnet import controlnet_apply_advanced
from darkroom.engine.nodes.library.conditioning.hooks import (
    create_hook_lora_node,
    create_hook_model_as_lora_node,
    set_clip_hooks,
    set_hook_keyframes,
)
from darkroom.engine.nodes.library.conditioning.text import clip_text_encode
from darkroom.engine.nodes.library.model.hypernetwork import hypernetwork_loader
from darkroom.engine.nodes.library.model.lora import lora_loader, lora_loader_model_only
from darkroom.engine.nodes.library.model.model_merging import (
    MODEL_SPECIFIC,
    clip_merge_simple,
    model_merge_blocks,
    model_merge_simple,
)
from darkroom.engine.nodes.library.model.model_saving import checkpoint_save
from darkroom.engine.nodes.library.sampling.sampling import ksampler
from tests.engine.nodes.small_store import node_context, small_store

UNET_KEY = "diffusion_model.input_blocks.1.1.transformer_blocks.0.attn2.to_k.weight"
TEXT_KEY = "clip_l.transformer.text_model.encoder.layers.0.self_attn.q_proj.weight"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    write_random_checkpoint(folder / "checkpoints" / "a.safetensors", "small", seed=0)
    write_random_checkpoint(folder / "checkpoints" / "b.safetensors", "small", seed=1)
    torch.manual_seed(0)
    write_safetensors(
        folder / "loras" / "l.safetensors",
        {
            "lora_unet_input_blocks_1_1_transformer_blocks_0_attn2_to_k.lora_up.weight": torch.randn(64, 2),
            "lora_unet_input_blocks_1_1_transformer_blocks_0_attn2_to_k.lora_down.weight": torch.randn(2, 64),
            "lora_te_text_model_encoder_layers_0_self_attn_q_proj.lora_up.weight": torch.randn(64, 2),
            "lora_te_text_model_encoder_layers_0_self_attn_q_proj.lora_down.weight": torch.randn(2, 64),
        },
    )
    config = default_family().scales["small"].denoiser
    control = {f"control_model.{name}": torch.randn_like(weight) * 0.05
               for name, weight in ControlNetModel(config).state_dict().items()}  # fmt: skip
    write_safetensors(folder / "controlnet" / "c.safetensors", control)
    layer = {"linear.0.weight": torch.randn(64, 64), "linear.0.bias": torch.randn(64)}
    (folder / "hypernetworks").mkdir()
    torch.save({64: (layer, layer), "activation_func": "relu"}, folder / "hypernetworks" / "h.pt")
    return folder


@pytest.fixture
def store(models: Path) -> ModelStore:
    return small_store(models)


def _sampled(store: ModelStore, model: Any, positive: Any, negative: Any = None, steps: int = 2) -> torch.Tensor:
    latent = ksampler(
        node_context(store), model=model, seed=3, steps=steps, cfg=4.0, sampler_name="euler", scheduler="normal",
        positive=positive, negative=negative or positive, latent_image={"samples": torch.zeros(1, 4, 8, 8)},
    )["samples"]  # fmt: skip
    samples: torch.Tensor = latent
    return samples


def _prompt(store: ModelStore, clip: Any) -> Any:
    return clip_text_encode(node_context(store), text="a fox", clip=clip)


def test_a_lora_changes_the_clone_alone_and_leaves_no_trace(store: ModelStore) -> None:
    model, clip, _ = store.checkpoint("a.safetensors")
    before = {name: weight.clone() for name, weight in model.model.state_dict().items()}
    plain = _sampled(store, model, _prompt(store, clip))
    patched, patched_clip = lora_loader(
        node_context(store), model=model, clip=clip, lora_name="l.safetensors", strength_model=0.8, strength_clip=0.5
    )
    assert patched.model is model.model, "clones share the weights"
    assert not torch.equal(_prompt(store, patched_clip)[0][0], _prompt(store, clip)[0][0])
    assert not torch.equal(_sampled(store, patched, _prompt(store, patched_clip)), plain)
    assert torch.equal(_sampled(store, model, _prompt(store, clip)), plain)
    assert all(torch.equal(weight, before[name]) for name, weight in model.model.state_dict().items())


def test_the_metadata_of_a_lora_tell_the_size_of_guides(store: ModelStore, models: Path) -> None:
    tensors = SafetensorsFile(models / "loras" / "l.safetensors")
    write_safetensors(
        models / "loras" / "ic.safetensors",
        {name: tensors.tensor(name) for name in tensors.tensors},
        {"ss_name": "ic", "lora.reference_downscale_factor": "2"},
    )
    model, clip, _ = store.checkpoint("a.safetensors")
    context = node_context(store)
    found = []
    for name in ("l.safetensors", "ic.safetensors"):
        patched, patched_clip = lora_loader(context, model=model, clip=clip, lora_name=name)
        alone = lora_loader_model_only(context, model=model, lora_name=name)
        assert patched_clip.patcher.get_attachment("lora_metadata") == patched.get_attachment("lora_metadata")
        found += [get_ic_lora_parameters(context, iclora_model=item) for item in (patched, alone.clone())]
    assert [item["reference_downscale_factor"] for item in found] == [1, 1, 2, 2]
    assert model.get_attachment("lora_metadata") is None


def test_hooks_on_all_conditions_equal_the_lora_on_the_model(store: ModelStore) -> None:
    model, clip, _ = store.checkpoint("a.safetensors")
    lora = {"lora_name": "l.safetensors", "strength_model": 0.8, "strength_clip": 0.5}
    patched, patched_clip = lora_loader(node_context(store), model=model, clip=clip, **lora)
    expected = _sampled(store, patched, _prompt(store, patched_clip))
    hooks = create_hook_lora_node(node_context(store), **lora)
    hooked = _prompt(store, set_clip_hooks(node_context(store), clip=clip, hooks=hooks))
    assert torch.equal(_sampled(store, model, hooked), expected)
    assert not model.hook_patches, "what was registered for one run is forgotten after it"


def test_a_hook_whose_keyframes_say_zero_changes_nothing(store: ModelStore) -> None:
    model, clip, _ = store.checkpoint("a.safetensors")
    hooks = create_hook_model_as_lora_node(node_context(store), ckpt_name="b.safetensors")
    keyframes = HookKeyframeGroup()
    keyframes.add(HookKeyframe(0.0))
    prompt = _prompt(store, clip)
    scheduled = set_hook_keyframes(node_context(store), hooks=hooks, hook_kf=keyframes)
    plain = _sampled(store, model, prompt)
    assert torch.equal(_sampled(store, model, [[prompt[0][0], {**prompt[0][1], "hooks": scheduled}]]), plain)
    full = _sampled(store, model, [[prompt[0][0], {**prompt[0][1], "hooks": hooks}]])
    other, _, _ = store.checkpoint("b.safetensors")
    torch.testing.assert_close(full, _sampled(store, other, prompt), rtol=1e-3, atol=1e-3)


def test_keyframes_move_on_with_the_noise_level_and_hold_for_their_steps() -> None:
    group = HookKeyframeGroup()
    for strength, start in ((0.1, 0.0), (0.5, 0.4), (0.9, 0.8)):
        group.add(HookKeyframe(strength, start))
    for keyframe, sigma in zip(group.keyframes, (20.0, 5.0, 1.0), strict=True):
        keyframe.start_t = sigma
    options = {"sample_sigmas": torch.tensor([14.0, 7.0, 3.0, 0.5])}
    seen = []
    for sigma in (14.0, 14.0, 7.0, 3.0, 0.5):
        group.prepare_current_keyframe(sigma, options)
        seen.append(group.strength)
    assert seen == [0.1, 0.1, 0.1, 0.5, 0.9]


def test_a_clip_schedule_has_a_range_for_every_change_of_strength() -> None:
    group = HookKeyframeGroup()
    for strength, start in ((0.2, 0.0), (0.2, 0.3), (1.0, 0.5)):
        group.add(HookKeyframe(strength, start))
    ranges = [(span, keyframe.strength if keyframe else None) for span, keyframe in group.strength_ranges()]
    assert ranges == [((0.0, 0.5), 0.2), ((0.5, 1.0), 1.0)]


def test_merging_weighs_both_models_by_block(store: ModelStore) -> None:
    first, clip, _ = store.checkpoint("a.safetensors")
    second, second_clip, _ = store.checkpoint("b.safetensors")
    ours, theirs = (model.weights.original_weight(UNET_KEY).clone() for model in (first, second))
    merges = {
        0.3: model_merge_simple(node_context(store), model1=first, model2=second, ratio=0.3),
        0.6: model_merge_blocks(node_context(store), model1=first, model2=second, input=0.6, middle=0.1, out=0.2),
        0.9: MODEL_SPECIFIC[0](
            node_context(store), model1=first, model2=second, **{"time_embed.": 0.0, "input_blocks.1.": 0.9}
        ),
    }
    for ratio, merged in merges.items():
        with merged.in_use() as network:
            torch.testing.assert_close(network.state_dict()[UNET_KEY], ours * ratio + theirs * (1 - ratio))
    merged_clip = clip_merge_simple(node_context(store), clip1=clip, clip2=second_clip, ratio=0.5)
    with merged_clip.patcher.in_use() as network:
        mixed = network.state_dict()[TEXT_KEY]
    assert torch.equal(mixed, mixed.half().float()), "patched text encoders are rounded as ComfyUI rounds them"


def test_a_model_that_is_merged_into_another_leaves_ram_and_is_read_again(store: ModelStore) -> None:
    first, _, _ = store.checkpoint("a.safetensors")
    second, _, _ = store.checkpoint("b.safetensors")
    merged = model_merge_simple(node_context(store), model1=first, model2=second, ratio=0.3)
    resident = second.weights._resident  # type: ignore[attr-defined]
    seen = []
    for _ in range(2):
        with merged.in_use() as network:
            seen.append(network.state_dict()[UNET_KEY].clone())
        with first.in_use():
            pass  # so that the patches are computed again
        resident.drop()
        assert resident.ram_bytes < 10_000, "only its noise levels, which are in no file"
    assert torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[0], first.weights.original_weight(UNET_KEY))


def test_a_saved_checkpoint_holds_the_patches_and_loads_again(store: ModelStore, models: Path, tmp_path: Path) -> None:
    model, clip, vae = store.checkpoint("a.safetensors")
    patched, patched_clip = lora_loader(
        node_context(store), model=model, clip=clip, lora_name="l.safetensors", strength_model=0.8, strength_clip=0.5
    )
    context = node_context(store, tmp_path)
    checkpoint_save(context, model=patched, clip=patched_clip, vae=vae, filename_prefix="checkpoints/m", prompt={})
    path = tmp_path / "checkpoints" / "m_00001_.safetensors"
    assert SafetensorsFile(path).metadata == {"prompt": "{}", "modelspec.predict_key": "epsilon"}
    again = small_store(tmp_path)
    loaded, loaded_clip, _ = again.checkpoint("m_00001_.safetensors")
    assert torch.equal(_prompt(again, loaded_clip)[0][0], _prompt(store, patched_clip)[0][0])
    expected = _sampled(store, patched, _prompt(store, patched_clip))
    assert torch.equal(_sampled(again, loaded, _prompt(again, loaded_clip)), expected)


def test_a_controlnet_counts_in_its_range_only(store: ModelStore) -> None:
    model, clip, _ = store.checkpoint("a.safetensors")
    prompt = _prompt(store, clip)
    plain = _sampled(store, model, prompt)

    def controlled(**changes: float) -> torch.Tensor:
        inputs = {"strength": 1.0, "start_percent": 0.0, "end_percent": 1.0, **changes}
        positive, negative = controlnet_apply_advanced(
            node_context(store), positive=prompt, negative=prompt, image=torch.rand(1, 50, 70, 3),
            control_net=store.auxiliary.controlnet("c.safetensors"), **inputs,
        )  # fmt: skip
        return _sampled(store, model, positive, negative)

    assert not torch.equal(controlled(), plain)
    assert torch.equal(controlled(end_percent=0.0), plain)
    assert torch.equal(controlled(strength=0.0), plain)


def test_images_are_dealt_to_the_items_of_every_condition() -> None:
    images = torch.arange(2.0).reshape(2, 1, 1, 1)
    assert broadcast_image_to(images, 6, 2).flatten().tolist() == [0, 1, 0, 0, 1, 0]
    assert broadcast_image_to(images[:1], 6, 2).shape[0] == 1


def test_a_hypernetwork_changes_keys_and_values(store: ModelStore) -> None:
    model, clip, _ = store.checkpoint("a.safetensors")
    prompt = _prompt(store, clip)
    inputs = {"model": model, "hypernetwork_name": "h.pt"}
    none = hypernetwork_loader(node_context(store), **inputs, strength=0.0)
    some = hypernetwork_loader(node_context(store), **inputs, strength=0.7)
    plain = _sampled(store, model, prompt)
    assert torch.equal(_sampled(store, none, prompt), plain)
    assert not torch.equal(_sampled(store, some.clone(), prompt), plain)
    assert len(some.get_nested_additional_models()) == 1, "its weights are the pool's"


def test_a_hypernetwork_is_refused_by_the_name_of_a_family_that_has_none(
    store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _, _ = store.checkpoint("a.safetensors")
    family = dataclasses.replace(default_family(), label="Some Transformer", takes_hypernetworks=False)
    monkeypatch.setattr(model.model, "model_config", dataclasses.replace(model.model.model_config, family=family))
    expected = r"hypernetwork h\.pt: the model takes none; got Some Transformer, expected one of Stable Diffusion 1"
    with pytest.raises(ValueError, match=expected):
        hypernetwork_loader(node_context(store), model=model, hypernetwork_name="h.pt", strength=1.0)


@pytest.mark.parametrize(
    ("tensors", "found"),
    [
        ({"lora_controlnet": torch.zeros(1)}, "a Control-LoRA without the tensor input_hint_block"),
        ({"controlnet_blocks.0.weight": torch.zeros(1)}, "a ControlNet of Stable Diffusion 3, Flux or Qwen"),
        ({"adapter.body.0.weight": torch.zeros(1)}, "no known network"),
    ],
)
def test_other_control_files_are_refused_by_name(tmp_path: Path, tensors: dict[str, torch.Tensor], found: str) -> None:
    write_safetensors(tmp_path / "controlnet" / "x.safetensors", tensors)
    with pytest.raises(BadModelFile, match=found):
        small_store(tmp_path).auxiliary.controlnet("x.safetensors")


def test_latents_lie_plainly_in_memory_so_that_noise_drawn_like_them_is_comfyuis(store: ModelStore) -> None:
    vae = store.checkpoint("a.safetensors")[2]
    assert vae is not None
    assert vae.encode(torch.rand(1, 64, 72, 3)).is_contiguous()

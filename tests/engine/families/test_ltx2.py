"""LTX-2: configurations, noise levels of tokens, guidance, text, and what its network takes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from darkroom.engine.diffusion.nested_latent import packed
from darkroom.engine.families.base import NotRecognised
from darkroom.engine.families.ltx2.config import Ltx2Config, as_described, description, ltx2_config
from darkroom.engine.families.ltx2.denoiser import AUDIO_LEVELS, VIDEO_LEVELS, Ltx2Denoiser
from darkroom.engine.families.ltx2.duration import frames_of
from darkroom.engine.families.ltx2.family import FAMILY
from darkroom.engine.families.ltx2.guidance import NoiseRange, StreamsGuider, away_from
from darkroom.engine.families.ltx2.positions import audio_positions, reference_positions, video_positions
from darkroom.engine.families.ltx2.prompts import instructed, without_thoughts
from darkroom.engine.families.ltx2.text import GEMMA, SIGLIP, gemma_config, projection_layout
from darkroom.engine.families.ltx2.text_projection import TextProjection, TextProjectionConfig
from darkroom.engine.families.ltx2.transformer import Ltx2Transformer
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.layers.clip_vision import ClipVisionConfig
from darkroom.engine.layers.gemma_vision import GemmaConfig, GemmaModel, squares_of
from darkroom.engine.layers.language_model import GEMMA3, LanguageModelConfig
from darkroom.engine.layers.language_model import LanguageModel as Language
from darkroom.engine.text import sentence_pieces
from darkroom.engine.text.gemma_encoding import GemmaEncoder, GemmaEncoding
from darkroom.engine.text.gemma_tokens import GemmaTokenizer

CPU = torch.device("cpu")
SMALL: Ltx2Config = FAMILY.sizes["small"]
VIDEO, AUDIO = (1, 128, 3, 2, 2), (1, 8, 5, 16)


def drawn(network: torch.nn.Module, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    for _, weight in sorted(network.named_parameters()):
        with torch.no_grad():
            weight.normal_(0.0, 0.1, generator=generator)
    return network.requires_grad_(False).eval()


@pytest.fixture(scope="module")
def network() -> Ltx2Transformer:
    made: Ltx2Transformer = drawn(Ltx2Transformer(SMALL))
    return made


def inputs(seed: int = 1) -> tuple[list[torch.Tensor], torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    streams = [torch.randn(shape, generator=generator) for shape in (VIDEO, AUDIO)]
    return streams, torch.randn(1, 6, 2 * SMALL.text_dim, generator=generator)


# --- configuration ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, {"is_gated": True, "modulates_text": True, "times_text": True}])
def test_a_described_file_has_the_configuration_that_it_was_saved_with(changes: dict[str, Any]) -> None:
    config = replace(SMALL, **changes)
    with unfilled():
        shapes = {name: tuple(item.shape) for name, item in Ltx2Transformer(config).state_dict().items()}
    metadata = {name: json.dumps(value) for name, value in description(config).items()}
    assert as_described(ltx2_config(shapes), metadata) == config


def test_a_file_without_metadata_is_like_the_published_ones() -> None:
    full: Ltx2Config = FAMILY.sizes["full"]
    with unfilled():
        shapes = {name: tuple(item.shape) for name, item in Ltx2Transformer(full).state_dict().items()}
    assert as_described(ltx2_config(shapes), {}) == full
    assert full.text_widths == (3840, 7680)


@pytest.mark.parametrize("text", ["{", '{"transformer": 3}', '{"transformer": {"num_attention_heads": 0}}'])
def test_metadata_that_describe_nothing_are_refused(text: str) -> None:
    with pytest.raises(NotRecognised, match="metadata that do not describe it"):
        as_described(SMALL, {"config": text})


# --- positions -------------------------------------------------------------------------------------------------------


def test_positions_are_where_tokens_begin_and_end() -> None:
    frames = video_positions(3, 1, 1, starts_with_one_frame=True)[0]
    assert frames.tolist() == [[0, 1], [1, 9], [9, 17]]
    seconds = audio_positions(0, 3)[0]
    assert seconds.tolist() == pytest.approx(torch.tensor([[0.0, 0.01], [0.01, 0.05], [0.05, 0.09]]))
    assert float(reference_positions(3)[0, -1, 1]) == pytest.approx(-0.04)


# --- network ---------------------------------------------------------------------------------------------------------


def test_a_latent_frame_of_one_noise_level_is_as_its_cells(network: Ltx2Transformer) -> None:
    streams, text = inputs()
    by_frame, audio_times = torch.tensor([[0.1, 0.7, 0.7]]), torch.tensor([0.7])
    by_token = by_frame.repeat_interleave(4, dim=1)
    found = network(streams, (by_frame, audio_times), text)
    for ours, theirs in zip(found, network(streams, (by_token, audio_times), text), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)


def test_a_replaced_block_gets_both_streams(network: Ltx2Transformer) -> None:
    streams, text = inputs()
    times = torch.tensor([0.6])
    seen: list[Any] = []

    def replacement(args: dict[str, Any], extra: dict[str, Any]) -> Any:
        seen.append([tuple(item.shape) for item in args["img"]])
        return extra["original_block"](args)

    options = {"patches_replace": {"dit": {("double_block", 1): replacement}}}
    found = network(streams, times, text, None, None, options)
    assert seen == [[(1, 12, 128), (1, 5, 64)]]
    for ours, theirs in zip(found, network(streams, times, text), strict=True):
        assert torch.equal(ours, theirs)


def test_streams_that_do_not_attend_to_each_other_are_independent(network: Ltx2Transformer) -> None:
    streams, text = inputs()
    other = [streams[0], streams[1] + 1.0]
    options = {"a2v_cross_attn": False, "v2a_cross_attn": False}
    times = torch.tensor([0.6])
    alone = [network(item, times, text, None, None, options)[0] for item in (streams, other)]
    together = [network(item, times, text)[0] for item in (streams, other)]
    assert torch.equal(*alone)
    assert not torch.allclose(together[0], together[1], atol=1e-6)


def test_a_video_without_audio_is_one_tensor(network: Ltx2Transformer) -> None:
    streams, text = inputs()
    found = network(streams[0], torch.tensor([0.6]), text)
    assert isinstance(found, torch.Tensor) and found.shape == VIDEO


# --- inputs ----------------------------------------------------------------------------------------------------------


def conds(network: Ltx2Transformer, mask: list[torch.Tensor] | None = None, **more: Any) -> dict[str, Any]:
    denoiser = Ltx2Denoiser(network)
    shapes = (VIDEO, AUDIO)
    given = {"noise": torch.zeros(1, 1, 1), "device": CPU, "latent_shapes": shapes, **more}
    given["denoise_mask"] = (
        None if mask is None else packed([torch.ones(shape) * item for shape, item in zip(shapes, mask, strict=True)])
    )
    if mask is None:
        del given["denoise_mask"]
    return {name: item.cond for name, item in denoiser.extra_conds(**given).items()}


def test_noise_levels_are_one_a_frame_where_masks_are_of_frames(network: Ltx2Transformer) -> None:
    frames = torch.tensor([0.0, 1.0, 0.5]).view(1, 1, 3, 1, 1)
    found = conds(network, [frames, torch.tensor([0.0, 1, 1, 1, 1]).view(1, 1, 5, 1)])
    assert found[VIDEO_LEVELS].tolist() == [[0.0, 1.0, 0.5]]
    assert found[AUDIO_LEVELS].tolist() == [[0.0, 1.0, 1.0, 1.0, 1.0]]
    cells = frames.expand(1, 1, 3, 2, 2).clone()
    cells[..., 0, 0] = 1.0
    assert conds(network, [cells, torch.ones(1, 1, 1, 1)])[VIDEO_LEVELS].shape == (1, 12)
    levels = Ltx2Denoiser(network).process_timestep(torch.tensor([0.5]), **{VIDEO_LEVELS: found[VIDEO_LEVELS]})
    assert [item.tolist() for item in levels] == [[[0.0, 0.5, 0.25]], [0.5]]


def test_text_passes_the_connectors_once(network: Ltx2Transformer) -> None:
    text = torch.randn(1, 7, SMALL.text_dim)
    read = conds(network, cross_attn=text, unprocessed_ltxav_embeds=True)["c_crossattn"]
    assert read.shape == (1, 1024, 2 * SMALL.text_dim)
    assert torch.equal(conds(network, cross_attn=read)["c_crossattn"], read)
    with pytest.raises(ValueError, match=r"got text of width 5, expected 64 or 128"):
        conds(network, cross_attn=torch.zeros(1, 7, 5))


# --- guidance --------------------------------------------------------------------------------------------------------


def test_guidance_goes_away_from_the_weakened_network_within_its_range() -> None:
    guide = away_from(lambda args: torch.ones(2), 3.0, NoiseRange(0.8, 0.2))
    args = {"denoised": torch.zeros(2), "cond_denoised": torch.full((2,), 2.0)}
    found = [guide({**args, "sigma": torch.tensor([level])}).tolist() for level in (0.9, 0.5, 0.1)]
    assert found == [[0.0, 0.0], [3.0, 3.0], [0.0, 0.0]]


def test_a_video_and_its_audio_have_scales_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = type("Model", (), {"model_options": {}})()
    guider = StreamsGuider(model)
    guider.set_cfg(2.0, 5.0)
    guider.stream_shapes = ((1, 1, 2), (1, 1, 3))
    taken: list[Any] = []
    monkeypatch.setattr(
        "darkroom.engine.diffusion.sample.sampling_function",
        lambda *args, model_options, seed: taken.append(model_options),
    )
    guider.predict_noise(torch.zeros(1, 1, 5), torch.ones(1))
    guided = taken[0]["sampler_cfg_function"]({"cond": torch.ones(1, 1, 5), "uncond": torch.zeros(1, 1, 5)})
    assert guided.tolist() == [[[2.0, 2.0, 5.0, 5.0, 5.0]]]
    assert taken[0]["disable_cfg1_optimization"]


# --- text ------------------------------------------------------------------------------------------------------------


def tokenizer() -> GemmaTokenizer:
    vocabulary = sentence_pieces.sentence_pieces(sentence_pieces.byte_vocabulary())
    return GemmaTokenizer(None, slot="gemma3_12b", vocabulary=lambda: vocabulary, min_length=16)


def numbers(text: str, **options: Any) -> list[int]:
    return [token for token, _ in tokenizer().tokenize_with_weights(text, **options)["gemma3_12b"][0]]


def test_padding_is_before_a_prompt_whose_brackets_are_text() -> None:
    found = numbers("(a:1.5)")
    assert len(found) == 16 and found[:2] == [0, 0]
    start = found.index(2)
    assert found[start + 1 :] == numbers("(a:1.5)", min_length=1)[start + 1 :]
    assert len(found) - start - 1 >= len("(a:1.5)")


def test_special_tokens_of_a_text_are_single_tokens() -> None:
    image = torch.zeros(1, 2, 2, 3)
    assert numbers("a<image_soft_token>b").count(262144) == 1
    templated = tokenizer().tokenize_with_weights("hi", skip_template=False, image=image)["gemma3_12b"][0]
    assert [token["type"] for token, _ in templated if isinstance(token, dict)] == ["image"]
    assert numbers("<start_of_turn>hi", skip_template=False) == numbers("<start_of_turn>hi")


def test_images_take_the_area_of_the_encoder_s_square_and_are_limited_in_number() -> None:
    chunk = tokenizer().tokenize_with_weights("a<image_soft_token>b", image=torch.rand(2, 30, 120, 4))["gemma3_12b"][0]
    (image,) = (token["data"] for token, _ in chunk if isinstance(token, dict))
    assert image.shape == (2, 448, 1792, 3)
    with pytest.raises(ValueError, match="image: too many for one prompt; got 33, expected at most 32"):
        tokenizer().tokenize_with_weights("a", image=torch.zeros(33, 2, 2, 3))


def gemma(vision: ClipVisionConfig | None) -> GemmaModel:
    language = LanguageModelConfig(
        kind=GEMMA3, num_layers=1, width=8, heads=1, key_heads=1, inner_width=8, vocabulary_size=300,
        norms_queries=True, norms_outputs=True,
    )  # fmt: skip
    made: GemmaModel = drawn(GemmaModel(GemmaConfig(language, vision)))
    return made


SMALL_SIGLIP = replace(SIGLIP, num_layers=1, width=32, inner_width=16, patch_px=2, image_px=64)


def test_an_image_is_256_tokens_between_those_of_the_text_and_is_not_scaled_with_them() -> None:
    encoder = GemmaEncoder(gemma(SMALL_SIGLIP), GemmaEncoding("gemma3_12b", 8))
    images = torch.rand(2, 64, 64, 3)
    prompt = [(2, 1.0), ({"type": "image", "data": images}, 1.0), (40, 1.0)]
    states = encoder.encode_weighted([prompt], layer_idx=None, project_pooled=True).cond
    assert states.shape == (1, 2, 1 + 2 * 256 + 1, 8)
    seen = encoder.transformer.image_tokens(images)
    assert torch.allclose(states[0, 0, 1:-1], seen.flatten(0, 1), atol=1e-5)
    table = encoder.transformer.model.embed_tokens.weight
    assert torch.allclose(states[0, 0, -1], table[40] * 8**0.5)


def test_the_middle_square_of_an_image_is_read_in_8_bits() -> None:
    wide = torch.zeros(1, 4, 12, 3)
    wide[:, :, 4:8] = 0.501
    square = squares_of(wide, 4)
    assert square.shape == (1, 3, 4, 4) and torch.allclose(
        square, torch.full_like(square, 128 / 127.5 - 1.0), atol=1e-6
    )
    assert squares_of(torch.rand(2, 10, 7, 3), 4).shape == (2, 3, 4, 4)


def test_an_image_for_a_file_without_an_image_encoder_is_refused() -> None:
    encoder = GemmaEncoder(gemma(None), GemmaEncoding("gemma3_12b", 8))
    prompt = [(2, 1.0), ({"type": "image", "data": torch.zeros(1, 4, 4, 3)}, 1.0)]
    with pytest.raises(ValueError, match=r"image: this file .* no image encoder; .* expected a file with the weights"):
        encoder.encode_weighted([prompt], layer_idx=None, project_pooled=True)


@pytest.mark.parametrize("vision", [None, SMALL_SIGLIP])
def test_the_image_encoder_is_read_from_its_weights(vision: ClipVisionConfig | None) -> None:
    model = gemma(vision)
    shapes = {name: tuple(item.shape) for name, item in model.state_dict().items()}
    assert gemma_config(shapes) == GemmaConfig(model.config, vision)
    if vision is not None:
        with pytest.raises(NotRecognised, match="image encoder has 25 patches and 32 channels"):
            gemma_config({**shapes, "vision_model.embeddings.position_embedding.weight": (25, 32)})


def test_an_image_encoder_under_google_s_names_is_found() -> None:
    def named(name: str) -> str:
        if name.startswith("vision_model."):
            return f"model.vision_tower.{name}"
        is_projector = name.startswith("multi_modal_projector.")
        return f"model.{name}" if is_projector else name.replace("model.", "model.language_model.", 1)

    shapes = {name: tuple(item.shape) for name, item in gemma(SMALL_SIGLIP).state_dict().items()}
    published = {named(name): shape for name, shape in shapes.items()}
    found = next(names for layout in GEMMA.network.layouts if (names := layout(published)) is not None)
    assert {name: found[name] for name in shapes} == {name: named(name) for name in shapes}


def test_the_encoder_does_not_compute_padding() -> None:
    config = LanguageModelConfig(
        kind=GEMMA3, num_layers=2, width=8, heads=1, key_heads=1, inner_width=8, vocabulary_size=300,
        norms_queries=True, norms_outputs=True,
    )  # fmt: skip
    encoder = GemmaEncoder(drawn(Language(config)), GemmaEncoding("gemma3_12b", 8))
    padded = [(0, 1.0)] * 5 + [(2, 1.0), (40, 1.0), (41, 1.0)]
    states = encoder.encode_weighted([padded], layer_idx=None, project_pooled=True).cond
    assert states.shape == (1, 3, 3, 8)
    rows, _ = encoder._embed([token for token, _ in padded])
    seen = torch.tensor([[0] * 5 + [1] * 3])
    whole = encoder.transformer.model.all_states(rows[None], seen)
    assert torch.allclose(states, whole[:, :, 5:], atol=1e-5)


def test_most_layers_attend_to_the_window_alone() -> None:
    kind = replace(GEMMA3, window=4)
    config = LanguageModelConfig(
        kind=kind, num_layers=2, width=8, heads=1, key_heads=1, inner_width=8, vocabulary_size=9, norms_queries=True,
        norms_outputs=True,
    )  # fmt: skip
    model = drawn(Language(config)).model
    first, second = torch.randn(2, 1, 10, 8)
    second[:, 3:] = first[:, 3:]
    mixed = [model(rows)[0, -1] for rows in (first, second)]
    assert torch.allclose(mixed[0], mixed[1], atol=1e-6)  # two layers of four tokens see seven
    past = model.empty_past()
    *_, last = model.states(first[:, :9], past=past)
    *_, last = model.states(first[:, 9:], past=past)
    assert torch.allclose(model.norm(last)[0, -1], mixed[0], atol=1e-5)


def test_a_projection_of_both_streams_gives_them_side_by_side() -> None:
    projection = drawn(TextProjection(TextProjectionConfig(24, (6, 4), (True, True))))
    assert projection(torch.randn(1, 3, 5, 8)).shape == (1, 5, 10)
    assert projection.options == {"unprocessed_ltxav_embeds": True}


def test_a_file_with_a_projection_may_have_the_connectors() -> None:
    weight = {"text_embedding_projection.weight": (8, 24)}
    connector = {"model.diffusion_model.video_embeddings_connector.learnable_registers": (128, 8)}
    assert projection_layout(weight) == {"aggregate_embed.weight": "text_embedding_projection.weight"}
    assert set(projection_layout(weight | connector) or ()) == {
        "aggregate_embed.weight", "video_embeddings_connector.learnable_registers",
    }  # fmt: skip
    whole = weight | connector | {"model.diffusion_model.patchify_proj.weight": (8, 8)}
    assert set(projection_layout(whole) or ()) == {"aggregate_embed.weight"}  # the transformer has them
    assert projection_layout(connector) is None


# --- prompts and durations -------------------------------------------------------------------------------------------


def test_a_prompt_is_written_in_turns_of_a_chat() -> None:
    text, image = (instructed("a fox", has_image=has_image) for has_image in (False, True))
    assert text.startswith("<start_of_turn>system\n") and text.endswith("<start_of_turn>model\n")
    assert "a fox." in text and "<image_soft_token>" not in text and "<image_soft_token>" in image
    assert without_thoughts("<think>so</think> Fox. <think>and") == "Fox."


@pytest.mark.parametrize(
    ("seconds", "least", "most", "frames"),
    [(2.0, 1.0, 20.0, 41), (0.1, 1.0, 20.0, 25), (99.0, 1.0, 20.0, 473), (0.6, 0.6, 0.6, 14)],
)
def test_durations_are_whole_latent_frames(seconds: float, least: float, most: float, frames: int) -> None:
    assert frames_of(seconds, 24.0, least, most) == frames

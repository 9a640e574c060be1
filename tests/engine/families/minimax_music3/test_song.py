"""MiniMax Music 3: prompts, the end of a song, windows of its network, audio decoded by stretches, files of it."""

from __future__ import annotations

import pytest
import torch

from darkroom.engine.families.base import NotRecognised, TensorIndex
from darkroom.engine.families.minimax_music3.frame_writer import FrameSampling, drawn, written_states
from darkroom.engine.families.minimax_music3.prompts import MOST_CHARACTERS, plain_caption, plain_lyrics, song_prompt
from darkroom.engine.families.minimax_music3.song_writer import SongWriter, song_writer_config
from darkroom.engine.families.minimax_music3.transformer import HOP_CELLS, WINDOW_CELLS, num_cells, windows
from darkroom.engine.families.minimax_music3.vae import STRETCH_CELLS, MiniMaxMusic3Vae
from darkroom.engine.families.registry import family_named, recognise, recognise_vae
from darkroom.engine.formats.unfilled import give_memory, unfilled

FAMILY = family_named("minimax_music3")


def filled(build: object, config: object) -> torch.nn.Module:
    with unfilled():
        network: torch.nn.Module = build(config).requires_grad_(False).eval()  # type: ignore[operator]
    give_memory(network, "cpu")
    draw = torch.Generator().manual_seed(0)
    for _, weight in sorted(network.named_parameters()):
        fan_in = weight[0].numel() if weight.ndim > 1 else 1
        weight.normal_(0.0, max(fan_in, 4) ** -0.5, generator=draw)
    return network


@pytest.fixture(scope="module")
def writer() -> SongWriter:
    network = filled(FAMILY.text[0].network.build, FAMILY.scales["small"].text["minimax_music3"])
    assert isinstance(network, SongWriter)
    return network


def test_captions_lose_their_markup() -> None:
    given = "# Title\n***\n**bold** *it* b <|genre  folk rock|>\n\n\n- one • two\n---\nend"
    assert plain_caption(given) == "Title\nbold it b genre is folk rock\none two\nend"


def test_sections_of_lyrics_stand_on_lines_of_their_own() -> None:
    assert plain_lyrics("[Verse 1] a ^ b  [CHORUS]\n c") == "[start]\n[verse 1]\na\nb\n[chorus]\nc"
    assert plain_lyrics("") == "[start]\n"


def test_texts_that_are_too_long_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="lyrics: too long"):
        song_prompt("a", "b" * (MOST_CHARACTERS + 1))


def test_draws_are_among_the_best_alone() -> None:
    scores = torch.tensor([[0.0, 3.0, 1.0, 2.0]])
    generator = torch.Generator().manual_seed(0)
    assert {int(drawn(scores, 2, generator)) for _ in range(40)} == {1, 3}


def test_a_song_ends_where_the_model_says_so(writer: SongWriter) -> None:
    rows = torch.randn(2, 6, 32, generator=torch.Generator().manual_seed(1))
    whole = written_states(writer, rows, FrameSampling(max_frames=30, seed=2), lambda index: None)
    assert whole.shape == (30, 8 * 32)
    seen: list[int] = []
    scores = writer.scores
    ends_at = 4

    def ending(states: torch.Tensor) -> torch.Tensor:
        found = scores(states)
        if len(seen) == ends_at + 1:
            found[:, writer.end] = 100.0
        return found

    writer.scores = ending  # type: ignore[method-assign]
    try:
        shorter = written_states(writer, rows, FrameSampling(max_frames=30, seed=2), seen.append)
        seen.clear()
        ends_at = 1
        with pytest.raises(ValueError, match="ended before its first frame"):
            written_states(writer, rows, FrameSampling(max_frames=3, seed=2), seen.append)
    finally:
        writer.scores = scores  # type: ignore[method-assign]
    assert shorter.shape[0] == 3 and torch.equal(shorter, whole[:3])


def test_windows_overlap_by_half_and_end_with_the_audio() -> None:
    assert [*windows(WINDOW_CELLS)] == [(0, WINDOW_CELLS)]
    long = [*windows(2000)]
    assert long[0] == (0, WINDOW_CELLS) and long[1][0] == HOP_CELLS and long[-1][1] == 2000
    assert num_cells(200) == 689 and num_cells(0) == 1


def test_audio_decoded_by_stretches_is_that_of_the_whole() -> None:
    vae = filled(FAMILY.vae.build, FAMILY.scales["small"].vae)
    assert isinstance(vae, MiniMaxMusic3Vae)
    latent = torch.randn(1, 128, STRETCH_CELLS + 40, generator=torch.Generator().manual_seed(3))
    found = vae.decode(latent)
    whole = vae.decoder(vae.dec_in_proj(latent.view(2, 64, -1))).view(1, 2, -1)
    torch.testing.assert_close(found, whole, rtol=1e-4, atol=1e-5)
    short, long = (vae.decode_bytes((1, 128, cells)) for cells in (STRETCH_CELLS * 2, STRETCH_CELLS * 20))
    assert long < 2 * short
    with pytest.raises(ValueError, match="no encoder"):
        vae.encode(found)


@pytest.mark.parametrize("scale", ["full", "small"])
def test_files_of_it_are_known_by_their_tensors(scale: str) -> None:
    with unfilled():
        network, vae = FAMILY.denoiser.build(FAMILY.sizes[scale]), FAMILY.vae.build(FAMILY.vae.sizes[scale])
    found = recognise(TensorIndex({name: tuple(item.shape) for name, item in network.state_dict().items()}))
    assert found.family is FAMILY
    family, _ = recognise_vae({name: tuple(item.shape) for name, item in vae.state_dict().items()})
    assert family.name == FAMILY.name


def test_a_language_model_without_the_tokens_of_audio_is_refused(writer: SongWriter) -> None:
    shapes = {name: tuple(item.shape) for name, item in writer.state_dict().items()}
    assert song_writer_config(shapes) == writer.config
    with pytest.raises(NotRecognised, match="writes no audio"):
        song_writer_config({**shapes, "model.embed_tokens.weight": (1000, 32)})

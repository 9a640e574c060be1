"""Nodes of Wan's later networks: colours of figures, tracks, key frames, speakers, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from darkroom.engine.families.wan.infinite_talk import speaker_places, speech_windows
from darkroom.engine.families.wan.nodes.bernini import within
from darkroom.engine.families.wan.nodes.dancer import key_places, wan_dancer_pad_keyframes_list
from darkroom.engine.families.wan.nodes.figure_colours import (
    COLOURS,
    colour_channels,
    coloured,
    coloured_mask,
    figures_of,
    ordered,
)
from darkroom.engine.families.wan.nodes.infinite_talk import one_after_the_other, steps_of
from darkroom.engine.families.wan.nodes.move_tracks import timed, wan_move_visualize_tracks
from darkroom.engine.families.wan.nodes.scail import within_share
from darkroom.engine.families.wan.nodes.talk_patch import PLACES, SpeechPatch, talking_run
from darkroom.engine.families.wan.nodes.track_drawing import drawn_on, num_points
from darkroom.engine.families.wan.nodes.tracks import carried_along, visibility_of
from darkroom.engine.families.wan.transformer import GRID
from darkroom.engine.images.packed_masks import numbers_in
from tests.engine.nodes.small_store import node_context, small_store


def packed(masks: torch.Tensor) -> torch.Tensor:
    """Return masks [F, N, H, W] with eight pixels of a row in a byte."""
    bits = torch.tensor([1 << number for number in range(8)])
    eights = masks.reshape(*masks.shape[:-1], -1, 8).long()
    return torch.sum(eights * bits, dim=-1).to(torch.uint8)


def two_figures() -> dict[str, Any]:
    """Return tracks of two figures of 2 frames, the second of which is further left and larger."""
    masks = torch.zeros(2, 2, 4, 16)
    masks[:, 0, 1:2, 10:14], masks[:, 1, 1:4, 1:6] = 1, 1
    return {"packed_masks": packed(masks), "orig_size": (4, 16)}


@pytest.mark.parametrize(("sort_by", "first"), [("none", 0), ("left_to_right", 1), ("area", 1)])
def test_the_first_figure_gets_the_first_colour(sort_by: str, first: int) -> None:
    frames = coloured(ordered(figures_of(two_figures()), sort_by), 0.0)
    assert frames.shape == (2, 4, 16, 3) and not frames[:, 0].any()
    places = ((1, 11), (1, 2))
    assert frames[(0, *places[first])].tolist() == list(COLOURS[0])
    assert frames[(0, *places[1 - first])].tolist() == list(COLOURS[1])


def test_figures_that_appear_first_come_first() -> None:
    masks = torch.zeros(2, 2, 4, 16)
    masks[1, 0, :, :4], masks[0, 1, :, 8:] = 1, 1
    frames = coloured(ordered(figures_of({"packed_masks": packed(masks), "orig_size": (4, 16)}), "left_to_right"), 1.0)
    assert frames[0, 0, 12].tolist() == list(COLOURS[0]) and frames[1, 0, 1].tolist() == list(COLOURS[1])
    assert frames[0, 0, 1].tolist() == [1.0, 1.0, 1.0]


def test_without_figures_there_is_the_background_alone() -> None:
    frames = coloured(figures_of({"packed_masks": None, "orig_size": (3, 5), "n_frames": 4}), 1.0)
    assert frames.shape == (4, 3, 5, 3) and (frames == 1).all()
    assert coloured(figures_of(two_figures()).chosen([]), 0.0).shape == (2, 4, 16, 3)


def test_numbers_of_figures_that_are_not_there_are_left_out() -> None:
    assert numbers_in("1, 0,7,x,-1", 2) == [1, 0]


def test_a_mask_is_one_figure() -> None:
    image = coloured_mask(torch.tensor([[0.0, 1.0]]), 1.0)
    assert image.shape == (1, 1, 2, 3)
    assert image[0, 0].tolist() == [[1.0, 1.0, 1.0], list(COLOURS[0])]


def test_colours_become_channels_of_cells_four_frames_at_a_time() -> None:
    frames = torch.zeros(5, 16, 16, 3)
    frames[:, :, :8, 0] = 1.0  # red
    frames[4, :, 8:] = 1.0  # white
    channels = colour_channels(frames)
    assert channels.shape == (1, 2, 28, 2, 2)
    assert channels[0, 0, 1::7, :, 0].eq(1).all() and not channels[0, 0, 0::7].any()
    assert channels[0, 1, 21, :, 1].eq(1).all()  # the last of four frames is white there


def test_options_of_a_share_leave_the_rest_of_the_sampling_alone() -> None:
    plain = [[torch.zeros(1, 1, 1), {}]]
    parts = within_share(plain, {"pose": 1}, 0.2, 0.7)
    shares = [(item.get("start_percent"), item.get("end_percent"), "pose" in item) for _, item in parts]
    assert [share[2] for share in shares] == [False, True, False]
    assert shares[1][:2] == (0.2, 0.7) and shares[0][1] < 0.2 and shares[2][0] > 0.7
    assert [item for _, item in within_share(plain, {"pose": 1}, 0.0, 1.0)] == [
        {"pose": 1, "start_percent": 0.0, "end_percent": 1.0}
    ]
    assert within_share(plain, {"pose": 1}, 0.7, 0.2) == plain


def test_cells_under_tracks_are_carried_to_where_they_go() -> None:
    latent = torch.zeros(1, 16, 3, 6, 8)
    latent[:, :, 0, 1, 1] = 1.0
    path = torch.tensor([[10.0, 10.0]] * 4 + [[30.0, 20.0]] * 4 + [[99.0, 20.0]])[:, None]  # [9, 1, 2]
    moved = carried_along(latent, {"track_path": path}, 64, 48, 1.0)
    assert moved[0, 0, 1].nonzero().tolist() == [[2, 3]]
    assert not moved[:, :, 2].any()  # it has left the video
    half = carried_along(latent, {"track_path": path}, 64, 48, 0.5)
    assert half[0, 0, 1, 2, 3] == 0.5 and torch.equal(half[:, :, 0], latent[:, :, 0])


def test_a_mask_of_frames_hides_all_points() -> None:
    path = torch.zeros(3, 2, 2)
    visible = visibility_of({"track_path": path, "track_visibility": torch.tensor([[True], [False], [True]])})
    assert visible.shape == (3, 2) and visible[1].any().item() is False


@pytest.mark.parametrize("name", ["linear", "ease_in", "ease_out", "ease_in_out"])
def test_a_path_goes_from_its_beginning_to_its_end(name: str) -> None:
    times = timed(5, name)
    assert times[0] == 0 and times[-1] == 1 and (times.diff() > 0).all()
    assert not timed(5, "constant").any()


def test_points_are_drawn_where_they_are_and_lines_to_where_they_were() -> None:
    path = torch.tensor([[[4, 8]], [[20, 8]]])
    frames = drawn_on(torch.zeros(2, 16, 32, 3), path, torch.tensor([[True], [True]]), 24, 2, 1.0, 2)
    assert frames[0, 8, 4].any() and not frames[0, 8, 20].any()
    assert frames[1, 8, 20].any() and frames[1, 8, 12].any() and not frames[1, 2].any()
    hidden = drawn_on(torch.zeros(2, 16, 32, 3), path, torch.tensor([[False], [False]]), 24, 2, 1.0, 2)
    assert not hidden.any()
    assert num_points(path, 24) >= 16


def test_key_frames_are_spread_over_the_music() -> None:
    places = [key_places(4, 3.4, 60, index) for index in range(2)]  # 2 parts of 60 frames: a key frame each 30
    assert places[0] == [(0, 0), (59, 1)]
    assert places[1] == [(0, 1), (59, 2)]
    assert key_places(4, 0.1, 60, 0) == [] and key_places(0, 3.4, 60, 0) == []


def heard(num_layers: int, num_features: int, batch: int = 1) -> Any:
    ramp = torch.arange(num_features, dtype=torch.float32).view(1, -1, 1).expand(batch, -1, 2)
    return {"encoded_audio": ramp, "encoded_audio_all_layers": (ramp,) * num_layers, "audio_samples": 1}


def test_speakers_speak_one_after_the_other() -> None:
    first, second = steps_of(heard(4, 8)) + 1, steps_of(heard(4, 4)) + 1
    assert first.shape == (4, 3, 2)
    one, other = one_after_the_other([first, second])
    assert one.shape == other.shape == (6, 3, 2)
    assert one[:4].all() and not one[4:].any() and not other[:4].any() and other[4:].all()
    with pytest.raises(ValueError, match="a batch of audio; got 2, expected one"):
        steps_of(heard(4, 8, batch=2))


def test_frames_behind_the_speech_hear_its_first_step() -> None:
    speech = torch.arange(1.0, 6.0).view(5, 1, 1)
    windows = speech_windows([speech], 2, 5)
    assert windows.shape == (1, 5, 5, 1, 1)
    assert windows[0, 0, :, 0, 0].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert windows[0, 4, :, 0, 0].tolist() == [5.0, 1.0, 1.0, 1.0, 1.0]


def test_a_token_is_the_speakers_whom_it_sees_more_of() -> None:
    torch.manual_seed(0)
    faces = torch.randn(2, 128)
    first = faces.repeat_interleave(2, dim=0)[None, :, None] * 3  # 4 tokens of the first frame: two of each speaker
    keys = torch.cat([first, first.flip(1)], dim=1)  # in the second frame they have changed sides
    masks = torch.tensor([[True, True, False, False], [False, False, True, True]])
    places = speaker_places(keys, keys, masks)[0]
    assert (places[:2] <= 4).all() and (places[2:4] >= 20).all()
    assert (places[4:6] >= 20).all() and (places[6:] <= 4).all()


class Talk:
    """A model patch that adds the number of the speech's latent frame."""

    @property
    def model(self) -> Talk:
        return self

    def speech_tokens(self, windows: torch.Tensor) -> torch.Tensor:
        return torch.arange(1.0, 4.0).view(3, 1, 1)

    def added(self, index: int, x: torch.Tensor, speech: torch.Tensor, places: Any) -> torch.Tensor:
        assert places is None
        return speech.repeat_interleave(x.shape[1] // speech.shape[0], dim=0).view(1, -1, 1).expand_as(x)


class Window:
    places = (1, 2)


def test_speech_is_added_to_the_video_alone_and_by_window() -> None:
    patch = SpeechPatch(Talk(), torch.zeros(1, 9, 5, 1, 1), 0.5)  # type: ignore[arg-type]
    options: dict[str, Any] = {GRID: (3, 1, 2), "block_index": 0}
    out = patch({"x": torch.zeros(1, 8, 4), "transformer_options": options})
    assert out[0, :, 0].tolist() == [0.5, 0.5, 1.0, 1.0, 1.5, 1.5, 0.0, 0.0]
    cut = patch({"x": torch.zeros(1, 4, 4), "transformer_options": {**options, "context_window": Window()}})
    assert cut[0, :, 0].tolist() == [1.0, 1.0, 1.5, 1.5]
    with pytest.raises(ValueError, match=r"latent_image: it is shorter .* got 3 latent frames, expected 3"):
        patch({"x": torch.zeros(1, 5, 4), "transformer_options": options})
    assert PLACES not in options


def test_known_frames_are_in_each_step_and_in_the_result() -> None:
    seen: list[torch.Tensor] = []

    class Guider:
        model_options: dict[str, Any] = {"transformer_options": {}}

        class model_patcher:  # noqa: N801 - an attribute of guiders
            class model:  # noqa: N801 - and of patchers
                @staticmethod
                def process_latent_in(latent: torch.Tensor) -> torch.Tensor:
                    return latent * 10

    class Executor:
        class_obj = Guider()

        def __call__(self, noise: torch.Tensor) -> torch.Tensor:
            wrappers = self.class_obj.model_options["transformer_options"]["wrappers"]["apply_model"]
            (apply,) = wrappers["infinite_talk"]
            apply(lambda x: seen.append(x), noise)
            return noise

    earlier = torch.ones(1, 2, 1, 1, 1)
    out = talking_run(earlier, goes_on=True)(Executor(), torch.zeros(1, 2, 3, 1, 1))
    assert seen[0][0, 0, :, 0, 0].tolist() == [10.0, 0.0, 0.0]
    assert out[0, 0, :, 0, 0].tolist() == [1.0, 0.0, 0.0]
    assert Executor.class_obj.model_options == {"transformer_options": {}}
    plain = talking_run(earlier, goes_on=False)(Executor(), torch.zeros(1, 2, 3, 1, 1))
    assert not plain.any()


@pytest.mark.parametrize(("size", "longest", "found"), [
    ((48, 64), 848, (48, 64)), ((48, 64), 32, (32, 32)), ((100, 300), 96, (32, 96)), ((10, 10), 16, (16, 16)),
])  # fmt: skip
def test_other_videos_keep_their_aspect_ratio(size: tuple[int, int], longest: int, found: tuple[int, int]) -> None:
    assert within(torch.zeros(1, *size, 3), longest).shape == (1, *found, 3)


def test_frames_that_memory_does_not_hold_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = node_context(small_store(tmp_path), tmp_path)
    monkeypatch.setattr(context.files, "free_bytes", lambda: 4 * 8 * 3 * 4 * 3 * 10 - 1)
    tracks = {"track_path": torch.zeros(10, 1, 2)}
    with pytest.raises(ValueError, match="tracks: too large for the free memory"):
        wan_move_visualize_tracks(context, images=torch.zeros(1, 4, 8, 3), tracks=tracks)
    shorter = {"track_path": torch.zeros(9, 1, 2)}
    assert wan_move_visualize_tracks(context, images=torch.zeros(1, 4, 8, 3), tracks=shorter).shape == (9, 4, 8, 3)
    audio: Any = {"waveform": torch.zeros(1, 1, 100), "sample_rate": 100}
    with pytest.raises(ValueError, match="segment_length: too large for the free memory"):
        wan_dancer_pad_keyframes_list(
            context, images=torch.zeros(1, 4, 8, 3), segment_length=12, num_segments=2, audio=audio
        )

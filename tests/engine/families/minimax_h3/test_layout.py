"""The sequence of MiniMax H3: its stretches, and the positions of text, audio, video, guides and references."""

from __future__ import annotations

import torch

from darkroom.engine.families.minimax_h3.layout import (
    FRAME_SPAN,
    Guide,
    Reference,
    Source,
    Stretch,
    Time,
    cells_of,
    flat,
    from_flat,
    packed_layout,
)

TEXT = [int(Source.TEXT)] * 4
SIZE, AUDIO_FRAMES = (2, 4, 6), 8  # five frames, and their audio


def positions(*args: object, **kwargs: object) -> torch.Tensor:
    return torch.cat(packed_layout(*args, **kwargs).positions)  # type: ignore[arg-type]


def test_has_text_then_audio_then_video() -> None:
    layout = packed_layout(TEXT, SIZE, AUDIO_FRAMES)
    assert layout.stretches == [
        Stretch(Source.TEXT, Time.VIDEO, Source.TEXT, 4),
        Stretch(Source.AUDIO, Time.AUDIO, Source.AUDIO, 16),
        Stretch(Source.VIDEO, Time.VIDEO, Source.VIDEO, 12),
    ]
    assert from_flat(flat(layout.stretches)) == layout.stretches


def test_video_and_audio_begin_behind_the_text_on_one_time_line() -> None:
    text, audio, video = packed_layout(TEXT, SIZE, AUDIO_FRAMES).positions
    assert text[:, 0].tolist() == [0, 1, 2, 3]
    assert audio[:8, 0].tolist() == audio[8:, 0].tolist() == [4, 5, 6, 7, 8, 9, 10, 11]
    assert video[:6, 0].tolist() == [4] * 6
    assert video[6:, 0].tolist() == [4 + FRAME_SPAN] * 6  # the first latent frame is one frame of the video


def test_the_channels_of_audio_are_at_the_ends_of_the_image() -> None:
    _, audio, video = packed_layout(TEXT, SIZE, AUDIO_FRAMES).positions
    assert bool((audio[:8, 2] == video[:, 2].min()).all())
    assert bool((audio[8:, 2] == video[:, 2].max()).all())
    assert not audio[:, 1].any()


def test_the_middle_of_an_image_is_the_same_for_every_size() -> None:
    square, wide = cells_of(8, 8), cells_of(4, 16)
    assert square[:, 0].min() == 0 and wide[:, 1].min() < 0
    for cells, (height, width) in ((square, (8, 8)), (wide, (4, 16))):
        half_token = torch.tensor([height / (height // 2), width / (width // 2)]) * 16 / (height * width) ** 0.5
        middle = (cells.min(0).values + cells.max(0).values) / 2 + half_token
        assert torch.allclose(middle, torch.tensor([16.0, 16.0], dtype=torch.float64))


def test_images_within_the_text_have_the_modality_of_the_video() -> None:
    layout = packed_layout([1, 0, 0, 1], SIZE, AUDIO_FRAMES)
    assert [(item.source, item.modality, item.num_tokens) for item in layout.stretches[:3]] == [
        (Source.TEXT, 1, 1), (Source.TEXT, 0, 2), (Source.TEXT, 1, 1),
    ]  # fmt: skip


def test_a_guide_is_at_its_frame_of_the_video_behind_all_references() -> None:
    guide = Guide(3, torch.zeros(1, 24, 1, 4, 6), torch.zeros(1, 32, 2, 2))
    references = (Reference(torch.zeros(1, 24, 1, 2, 2), is_image=True), Reference(audio=torch.zeros(1, 32, 2, 5)))
    layout = packed_layout(TEXT, SIZE, AUDIO_FRAMES, (guide,), references)
    start = 4 + 1 + 5
    video, audio = layout.positions[1:3]
    assert bool((video[:, 0] == start + 3 * FRAME_SPAN).all())
    assert audio[:2, 0].tolist() == [start + 3 * FRAME_SPAN, start + 3 * FRAME_SPAN + 1]
    assert layout.positions[-1][0, 0] == start
    assert [item.time for item in layout.stretches[1:5]] == [
        Time.GIVEN_VIDEO, Time.GIVEN_AUDIO, Time.GIVEN_VIDEO, Time.GIVEN_AUDIO,
    ]  # fmt: skip


def test_a_reference_video_is_as_long_as_the_longer_of_its_streams() -> None:
    video = torch.zeros(1, 24, 2, 2, 2)
    assert Reference(video).span == 5 * FRAME_SPAN
    assert Reference(video, torch.zeros(1, 32, 2, 20)).span == 20
    layout = packed_layout(TEXT, SIZE, AUDIO_FRAMES, (), (Reference(video, torch.zeros(1, 32, 2, 20)),))
    assert [item.source for item in layout.stretches[1:3]] == [Source.AUDIO, Source.VIDEO]
    assert layout.positions[1][0, 0] == layout.positions[2][0, 0] == 4

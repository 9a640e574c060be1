"""Images of waveforms: their peaks, for every layout of samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from darkroom.engine.media.opened import BadMedia
from darkroom.engine.media.waveform_image import HEIGHT_PX, WIDTH_PX, drawn, write_waveform

RATE_HZ = 8000


def write_tone(path: Path, codec: str) -> None:
    """Write a second of silence and a second of a tone in the left of two channels."""
    seconds = np.arange(2 * RATE_HZ) / RATE_HZ
    tone = np.where(seconds < 1, 0.0, 0.8 * np.sin(seconds * 2 * np.pi * 200))
    samples = (np.stack([tone, np.zeros_like(tone)]) * 32767).astype(np.int16)
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream(codec, rate=RATE_HZ, layout="stereo")
        frame = av.AudioFrame.from_ndarray(samples.T.reshape(1, -1).copy(), format="s16", layout="stereo")
        frame.sample_rate = RATE_HZ
        for packet in (*stream.encode(frame), *stream.encode(None)):
            container.mux(packet)


@pytest.mark.parametrize(("name", "codec"), [("a.wav", "pcm_s16le"), ("a.flac", "flac"), ("a.wav", "pcm_u8")])
def test_silence_is_a_line_and_a_tone_is_as_high_as_it_is_loud(tmp_path: Path, name: str, codec: str) -> None:
    write_tone(tmp_path / name, codec)
    write_waveform(tmp_path / name, tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as image:
        assert image.size == (WIDTH_PX, HEIGHT_PX)
        heights = (np.asarray(image)[..., 3] > 0).sum(axis=0)
    assert heights[: WIDTH_PX // 2 - 8].max() <= 2
    assert heights[WIDTH_PX // 2 + 8 :].min() == pytest.approx(0.8 * HEIGHT_PX, abs=3)


def test_a_short_sound_fills_the_image() -> None:
    image = drawn(np.array([[-1.0, 1.0]], np.float32))
    assert (image[..., 3] > 0).all()


def test_a_file_without_audio_is_refused(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    with pytest.raises(BadMedia):
        write_waveform(tmp_path / "a.png", tmp_path / "b.png")

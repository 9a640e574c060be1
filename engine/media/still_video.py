"""Images as a video codec leaves them, through PyAV."""

from __future__ import annotations

import io

import torch

from darkroom.engine.media.opened import opened_for_reading, opened_for_writing
from darkroom.engine.media.video_files import video_stream_of


def compressed(image: torch.Tensor, crf: int) -> torch.Tensor:
    """Return an image [H, W, 3], 0..1, encoded as a frame of H.264 and decoded: cut to even sides.

    `crf` is 0 (best) to 51. Raises BadMedia where FFmpeg refuses the size or `crf`.
    """
    import av  # a third of a second

    height, width = (side // 2 * 2 for side in image.shape[:2])
    pixels = (image[:height, :width, :3] * 255.0).byte().cpu().contiguous().numpy()
    buffer = io.BytesIO()
    with opened_for_writing(buffer, format="mp4") as container:
        stream = container.add_stream("libx264", rate=1, options={"crf": str(crf), "preset": "veryfast"})
        stream.height, stream.width = height, width
        frame = av.VideoFrame.from_ndarray(pixels, format="rgb24").reformat(format="yuv420p")
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    with opened_for_reading(buffer) as container:
        frame = next(container.decode(video_stream_of(container)))
    return torch.from_numpy(frame.to_ndarray(format="rgb24")).to(image) / 255.0

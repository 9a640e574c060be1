"""ComfyUI-VideoHelperSuite on the worker: all its nodes run, long clips go through in batches, and files come out.

The pack is not in the repository: `NODE_PACKS` names a folder that has it (tried at commit 4ee72c0). Its packages
opencv-python-headless and imageio-ffmpeg (or FFmpeg on the path) have to be installed.
"""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import httpx
import numpy as np
import pytest
from PIL import Image

from tests.flow.running_worker import RunningWorker, running_worker

PACK = "ComfyUI-VideoHelperSuite"
PACKS = Path(os.environ.get("NODE_PACKS", ""))
NUM_FRAMES, WIDTH, HEIGHT, FPS, RATE = 20, 64, 48, 8, 44100
FORMATS = {
    "video/h264-mp4": ("mp4", "h264"),
    "video/h265-mp4": ("mp4", "hevc"),
    "video/webm": ("webm", "vp9"),
    "video/av1-webm": ("webm", "av1"),
    "video/ProRes": ("mov", "prores"),
    "video/ffv1-mkv": ("mkv", "ffv1"),
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        not os.environ.get("NODE_PACKS") or not (PACKS / PACK).is_dir(),
        reason=f"NODE_PACKS names no folder with {PACK}",
    ),
]


def node(class_type: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": class_type, "inputs": inputs}


def load(**inputs: Any) -> dict[str, Any]:
    sizes = {"force_rate": 0, "custom_width": 0, "custom_height": 0, "frame_load_cap": 0, "skip_first_frames": 0}
    return node("VHS_LoadVideo", **{"video": "clip.mkv", **sizes, "select_every_nth": 1, **inputs})


def combine(images: str = "1", form: str = "video/ffv1-mkv", **inputs: Any) -> dict[str, Any]:
    values = {"frame_rate": FPS, "loop_count": 0, "filename_prefix": "vhs", "pingpong": False, "save_output": True}
    return node("VHS_VideoCombine", images=[images, 0], format=form, **{**values, **inputs})


def in_batches(num_frames: int, **more: Any) -> dict[str, Any]:
    return {
        "b": node("VHS_BatchManager", frames_per_batch=num_frames),
        "1": load(meta_batch=["b", 0]),
        "2": combine(meta_batch=["b", 0], audio=["1", 2], **more),
    }


def text_of(source: str, slot: int = 0) -> dict[str, Any]:
    return node("PreviewAny", source=[source, slot])


def write_clip(path: Path) -> list[np.ndarray[Any, Any]]:
    """Write a lossless clip with audio; return its frames."""
    rng = np.random.default_rng(0)
    base = rng.integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    frames = [np.roll(base, 3 * number, axis=1) for number in range(NUM_FRAMES)]
    with av.open(str(path), "w") as container:
        video = container.add_stream("ffv1", rate=FPS)
        video.width, video.height, video.pix_fmt = WIDTH, HEIGHT, "bgr0"
        audio = container.add_stream("pcm_s16le", rate=RATE, layout="mono")
        for number, pixels in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, FPS)
            container.mux(video.encode(frame))
        container.mux(video.encode(None))
        tone = np.sin(np.arange(RATE * NUM_FRAMES // FPS) * 2 * np.pi * 440 / RATE)
        wave = av.AudioFrame.from_ndarray((tone[None] * 2**14).astype(np.int16), format="s16", layout="mono")
        wave.sample_rate = RATE
        container.mux(audio.encode(wave))
        container.mux(audio.encode(None))
    return frames


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[np.ndarray[Any, Any]]]:
    path = tmp_path_factory.mktemp("clips") / "clip.mkv"
    return path, write_clip(path)


@pytest.fixture(scope="module")
def worker(
    tmp_path_factory: pytest.TempPathFactory, clip: tuple[Path, list[np.ndarray[Any, Any]]]
) -> Iterator[RunningWorker]:
    pytest.importorskip("cv2", reason="opencv-python-headless, which the pack needs, is not installed")
    base = tmp_path_factory.mktemp("vhs")
    shutil.copytree(PACKS / PACK, base / "custom_nodes" / PACK)
    (base / "input" / "frames").mkdir(parents=True)
    shutil.copy(clip[0], base / "input" / "clip.mkv")
    for number, pixels in enumerate(clip[1][:6]):
        Image.fromarray(pixels).save(base / "input" / "frames" / f"{number:03}.png")
    with running_worker(base, None, METADATA="full") as running:
        yield running


def outputs_of(worker: RunningWorker, workflow: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    answer = worker.generate({"input": {"workflow_json": workflow, **fields}})
    assert answer.status_code == 200, answer.text
    outputs: list[dict[str, Any]] = answer.json()["output"]
    return outputs


def texts_of(worker: RunningWorker, workflow: dict[str, Any]) -> dict[str, str]:
    return {item["node_id"]: item["text"] for item in outputs_of(worker, workflow) if "text" in item}


def frames_of(output: dict[str, Any]) -> list[np.ndarray[Any, Any]]:
    with av.open(io.BytesIO(httpx.get(output["url"], trust_env=False).content), "r") as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def assert_same_frames(found: list[np.ndarray[Any, Any]], expected: list[np.ndarray[Any, Any]]) -> None:
    """Compare frames; a video of 16 bits may round to a neighbouring level."""
    assert [frame.shape for frame in found] == [frame.shape for frame in expected]
    differences = [
        np.abs(ours.astype(int) - theirs.astype(int)).max() for ours, theirs in zip(found, expected, strict=True)
    ]
    assert max(differences) <= 1, differences


@pytest.mark.parametrize("num_frames", [3, 10, 20, 50])
def test_a_clip_goes_through_in_batches_as_one_job(worker: RunningWorker, clip: Any, num_frames: int) -> None:
    [output] = outputs_of(worker, in_batches(num_frames))
    assert_same_frames(frames_of(output), clip[1])
    facts = {"type": "output", "frames": NUM_FRAMES, "channels": 1, "sample_rate": RATE}
    assert {name: output[name] for name in facts} == facts


def test_other_outputs_of_all_batches_are_in_the_result_in_their_order(worker: RunningWorker, clip: Any) -> None:
    workflow = {
        **in_batches(7),
        "i": node("ImageInvert", image=["1", 0]),
        "3": combine("i", meta_batch=["b", 0], filename_prefix="inverted"),
        "4": node("SaveImage", images=["1", 0], filename_prefix="frame"),
        "5": node("VHS_GetImageCount", images=["1", 0]),
        "6": text_of("5"),
        "7": node("EmptyImage", width=8, height=8, batch_size=1, color=0),
        "8": node("SaveImage", images=["7", 0], filename_prefix="once"),
    }
    outputs = outputs_of(worker, workflow)
    by_node = {name: [item for item in outputs if item["node_id"] == name] for name in workflow}
    assert_same_frames(frames_of(by_node["2"][0]), clip[1])
    assert_same_frames(frames_of(by_node["3"][0]), [255 - frame for frame in clip[1]])
    assert [item["text"] for item in by_node["6"]] == ["7", "7", "6"]
    assert [len(by_node[name]) for name in ("2", "3", "4", "8")] == [1, 1, NUM_FRAMES, 1]
    images = [
        np.asarray(Image.open(io.BytesIO(httpx.get(item["url"], trust_env=False).content))) for item in by_node["4"]
    ]
    assert_same_frames(images, clip[1])


def slowly(num_frames: int = 1) -> dict[str, Any]:
    scaled = node("ImageScaleBy", image=["1", 0], upscale_method="lanczos", scale_by=8.0)
    return {**in_batches(num_frames), "s": scaled, "2": combine("s", meta_batch=["b", 0], filename_prefix="slow")}


def start(worker: RunningWorker, name: str) -> None:
    answer = worker.http.post("/generate", json={"input": {"workflow_json": slowly(), "request_id": name}})
    assert answer.status_code == 202, answer.text


def until_message(worker: RunningWorker, name: str, words: str) -> None:
    while words not in (found := worker.get(f"/result/{name}").json())["message"]:
        assert found["status"] not in ("completed", "failed"), found
        time.sleep(0.02)


def test_a_job_that_is_cancelled_between_batches_leaves_the_engine_free(worker: RunningWorker, clip: Any) -> None:
    start(worker, "cancelled")
    until_message(worker, "cancelled", "Progress")
    assert worker.http.post("/cancel/cancelled").json()["status"] == "cancelled"
    assert worker.get("/result/cancelled").status_code == 499
    [output] = outputs_of(worker, in_batches(9))
    assert_same_frames(frames_of(output), clip[1])
    assert [path.name for path in (worker.base / "output").glob("slow*.mkv") if path.stat().st_size > 500_000] == []


def test_a_job_whose_engine_dies_between_batches_begins_again(worker: RunningWorker) -> None:
    start(worker, "survivor")
    until_message(worker, "survivor", "Progress")
    children = subprocess.run(["pgrep", "-P", str(worker.process.pid)], capture_output=True, text=True, check=True)
    for pid in map(int, children.stdout.split()):
        if b"engine" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
    answer = worker.generate({"input": {"workflow_json": slowly(), "request_id": "survivor"}})
    [output] = answer.json()["output"]
    assert (output["frames"], output["width"]) == (NUM_FRAMES, 8 * WIDTH)


def test_a_video_that_is_not_saved_is_delivered_from_the_temporary_folder(worker: RunningWorker, clip: Any) -> None:
    [output] = outputs_of(worker, {"1": load(), "2": combine(save_output=False)})
    assert (output["type"], output["output_type"]) == ("temp", "gifs")
    assert_same_frames(frames_of(output), clip[1])


@pytest.mark.parametrize("form", FORMATS)
def test_a_format_gives_a_video_with_audio(worker: RunningWorker, form: str) -> None:
    [output] = outputs_of(worker, {"1": load(), "2": combine(form=form, audio=["1", 2])})
    ending, codec = FORMATS[form]
    assert output["filename"].endswith(f".{ending}") and output["frames"] == NUM_FRAMES
    with av.open(io.BytesIO(httpx.get(output["url"], trust_env=False).content)) as container:
        names = [stream.codec_context.name for stream in container.streams.video]
        assert [codec in name for name in names] == [True] or codec == "av1"
        assert len(container.streams.audio) == 1
        assert (container.streams.video[0].width, container.streams.video[0].height) == (WIDTH, HEIGHT)


@pytest.mark.parametrize("form", ["image/gif", "image/webp", "video/ffmpeg-gif"])
def test_an_animation_has_every_frame(worker: RunningWorker, form: str) -> None:
    [output] = outputs_of(worker, {"1": load(), "2": combine(form=form, pingpong=True)})
    with Image.open(io.BytesIO(httpx.get(output["url"], trust_env=False).content)) as image:
        assert getattr(image, "n_frames", 1) == 2 * NUM_FRAMES - 2 and image.size == (WIDTH, HEIGHT)


@pytest.mark.parametrize("form", ["video/8bit-png", "video/16bit-png"])
def test_images_come_out_each(worker: RunningWorker, clip: Any, form: str) -> None:
    outputs = outputs_of(worker, {"1": load(frame_load_cap=4), "2": combine(form=form)})
    contents = [httpx.get(item["url"], trust_env=False).content for item in outputs]
    assert [item["filename"].rsplit(".", 2)[1] for item in outputs] == ["001", "002", "003", "004"]
    if form == "video/8bit-png":
        assert_same_frames([np.asarray(Image.open(io.BytesIO(item))) for item in contents], clip[1][:4])


def test_frames_are_chosen_while_a_video_is_loaded(worker: RunningWorker, clip: Any) -> None:
    chosen = load(skip_first_frames=3, select_every_nth=4, frame_load_cap=3)
    [output] = outputs_of(worker, {"1": chosen, "2": combine()})
    assert_same_frames(frames_of(output), clip[1][3:12:4])
    by_path = node("VHS_LoadImagesPath", directory=str(worker.base / "input" / "frames"), image_load_cap=0,
                   skip_first_images=1, select_every_nth=2)  # fmt: skip
    [output] = outputs_of(worker, {"1": by_path, "2": combine()})
    assert_same_frames(frames_of(output), clip[1][1:6:2])
    by_name = node("VHS_LoadImages", directory="frames", image_load_cap=2, skip_first_images=0, select_every_nth=1)
    [output] = outputs_of(worker, {"1": by_name, "2": combine()})
    assert_same_frames(frames_of(output), clip[1][:2])


def test_nodes_on_images_masks_and_latents_give_what_they_say(worker: RunningWorker) -> None:
    merged = {"merge_strategy": "match A", "scale_method": "bilinear", "crop": "disabled"}
    masks = {"mask": ["m", 0]}
    workflow = {
        "1": load(),
        "m": node("ImageToMask", image=["1", 0], channel="red"),
        "l": node("EmptyLatentImage", width=64, height=64, batch_size=5),
        "s1": node("VHS_SplitImages", images=["1", 0], split_index=4),
        "s2": node("VHS_SplitMasks", split_index=5, **masks),
        "s3": node("VHS_SplitLatents", latents=["l", 0], split_index=2),
        "d1": node("VHS_DuplicateImages", images=["1", 0], multiply_by=2),
        "d2": node("VHS_DuplicateMasks", multiply_by=3, **masks),
        "d3": node("VHS_DuplicateLatents", latents=["l", 0], multiply_by=2),
        "n1": node("VHS_SelectEveryNthImage", images=["1", 0], select_every_nth=3, skip_first_images=0),
        "n2": node("VHS_SelectEveryNthMask", select_every_nth=4, skip_first_masks=0, **masks),
        "n3": node("VHS_SelectEveryNthLatent", latents=["l", 0], select_every_nth=2, skip_first_latents=0),
        "g1": node("VHS_MergeImages", images_A=["1", 0], images_B=["s1", 0], **merged),
        "g2": node("VHS_MergeMasks", mask_A=["m", 0], mask_B=["m", 0], **merged),
        "g3": node("VHS_MergeLatents", latents_A=["l", 0], latents_B=["l", 0], **merged),
        "c1": node("VHS_SelectImages", image=["1", 0], indexes="0:3,-1", err_if_missing=True, err_if_empty=True),
        "c2": node("VHS_SelectMasks", mask=["m", 0], indexes="1,2", err_if_missing=True, err_if_empty=True),
        "c3": node("VHS_SelectLatents", latent=["l", 0], indexes="0", err_if_missing=True, err_if_empty=True),
        "k1": node("VHS_GetImageCount", images=["c1", 0]),
        "k2": node("VHS_GetMaskCount", mask=["c2", 0]),
        "k3": node("VHS_GetLatentCount", latents=["c3", 0]),
        "r": node("RebatchImages", images=["1", 0], batch_size=7),
        "u": node("VHS_Unbatch", batched=["r", 0]),
        "k4": node("VHS_GetImageCount", images=["u", 0]),
    }
    expected = {
        **{"s1": (1, "4"), "s2": (3, "15"), "s3": (1, "2"), "d1": (1, "40"), "d2": (1, "60"), "d3": (1, "10")},
        **{"n1": (1, "7"), "n2": (1, "5"), "n3": (1, "3"), "g1": (1, "24"), "g2": (1, "40"), "g3": (1, "10")},
        **{"k1": (0, "4"), "k2": (0, "2"), "k3": (0, "1"), "k4": (0, "20")},
    }
    shown = {f"t{name}": text_of(name, slot) for name, (slot, _) in expected.items()}
    assert texts_of(worker, {**workflow, **shown}) == {f"t{name}": text for name, (_, text) in expected.items()}


def test_a_video_is_described_and_its_audio_taken_over(worker: RunningWorker) -> None:
    workflow = {
        "1": load(force_rate=4),
        "2": node("VHS_VideoInfo", video_info=["1", 3]),
        "3": node("VHS_VideoInfoSource", video_info=["1", 3]),
        "4": node("VHS_VideoInfoLoaded", video_info=["1", 3]),
        "5": node("VHS_LoadAudio", audio_file=str(worker.base / "input" / "clip.mkv"), seek_seconds=0.5),
        "6": node("SaveAudio", audio=["5", 0], filename_prefix="sound"),
        **{f"s{slot}": text_of("3", slot) for slot in range(5)},
        **{f"l{slot}": text_of("4", slot) for slot in range(5)},
        **{f"b{slot}": text_of("2", slot) for slot in range(10)},
    }
    outputs = outputs_of(worker, workflow)
    texts = {item["node_id"]: float(item["text"]) for item in outputs if "text" in item}
    source, loaded = ([texts[f"{name}{slot}"] for slot in range(5)] for name in "sl")
    assert source == [8.0, 20.0, 2.5, WIDTH, HEIGHT] and loaded == [4.0, 10.0, 2.5, WIDTH, HEIGHT]
    assert [texts[f"b{slot}"] for slot in range(10)] == [*source, *loaded]
    [audio] = [item for item in outputs if item["output_type"] == "audio"]
    assert (audio["sample_rate"], audio["duration_seconds"]) == (RATE, pytest.approx(2.0, abs=0.01))


def test_files_that_a_node_prunes_are_gone_and_the_last_stays(worker: RunningWorker) -> None:
    workflow = {
        "1": load(),
        "2": combine(audio=["1", 2], filename_prefix="pruned"),
        "3": node("VHS_PruneOutputs", filenames=["2", 0], options="Intermediate and Utility"),
        "4": node("VHS_SelectFilename", filenames=["2", 0], index=-1),
        "5": text_of("4"),
    }
    outputs = outputs_of(worker, workflow)
    assert [item["filename"] for item in outputs if item["output_type"] == "gifs"] == ["pruned_00001-audio.mkv"]
    assert [path.name for path in (worker.base / "output").glob("pruned*")] == ["pruned_00001-audio.mkv"]


@pytest.mark.parametrize(
    ("workflow", "words"),
    [
        ({"1": load(video="gone.mp4"), "2": combine()}, "gone.mp4"),
        ({"1": load(), "2": combine(form="image/gif", meta_batch=["b", 0]), "b": node("VHS_BatchManager",
          frames_per_batch=5)}, "not compatible with batched output"),
        ({"1": load(), "2": combine(form="video/nothing")}, "video/nothing"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_said(worker: RunningWorker, workflow: dict[str, Any], words: str) -> None:
    answer = worker.generate({"input": {"workflow_json": workflow}})
    assert answer.status_code in (422, 500) and words in answer.text

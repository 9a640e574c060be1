"""Files sent along with a request: limits, the inputs they replace, how long they stay."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from darkroom.worker.errors import DiskLow, RequestRejected, RequestTooLarge
from darkroom.worker.inputs.folder import InputFolder
from darkroom.worker.inputs.uploads import ReceivedFile, UploadedFiles, uploaded_names
from darkroom.worker.settings.outputs import InputLimits
from tests.worker.shared_media_processes import media_processes

INFO = {
    "LoadImage": {"input": {"required": {"image": [[], {"image_upload": True}]}}},
    "Text": {"input": {"required": {"text": ["STRING", {}]}}},
}
HEADER = b'{"latent_tensor":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
LATENT = len(HEADER).to_bytes(8, "little") + HEADER + b"\0" * 4
NO_FLOOR = 0


def uploads(folder: Path, max_bytes: int = 1000, floor: int = NO_FLOOR) -> tuple[UploadedFiles, InputFolder]:
    limits = InputLimits(max_bytes=max_bytes, timeout_seconds=1)
    store = InputFolder(folder)
    return UploadedFiles(store, limits, floor, media_processes()), store


def received(place: UploadedFiles, part: str, content: bytes) -> ReceivedFile:
    upload = place.begin(part)
    for byte in content:
        upload.write(bytes([byte]))
    return upload.finish()


def prompt_with(value: str) -> dict[str, object]:
    return {
        "1": {"class_type": "LoadImage", "inputs": {"image": value}},
        "2": {"class_type": "Text", "inputs": {"text": value}},
    }


def test_a_file_over_the_limit_is_stopped_and_leaves_nothing(tmp_path: Path) -> None:
    upload = uploads(tmp_path, max_bytes=3)[0].begin("photo")
    with pytest.raises(RequestTooLarge, match="photo"):
        upload.write(b"four")
    upload.discard()
    assert os.listdir(tmp_path) == []


def test_a_disk_below_its_floor_takes_no_file(tmp_path: Path) -> None:
    with pytest.raises(DiskLow):
        uploads(tmp_path, floor=2**62)[0].begin("photo")


def test_only_inputs_that_take_a_file_are_replaced(tmp_path: Path) -> None:
    place, _ = uploads(tmp_path)
    files = {"photo": received(place, "photo", b"GIF89a")}
    with pytest.raises(RequestRejected) as refused:  # six bytes are no whole image
        place.place(prompt_with("photo"), files, INFO)
    assert refused.value.problems[0].node_id == "1"
    files = {"text": received(place, "text", b"x")}
    with pytest.raises(RequestRejected) as unused:
        place.place({"2": {"class_type": "Text", "inputs": {"text": "text"}}}, files, INFO)
    assert unused.value.problems[0].type == "unused_file"


def test_a_kept_file_stays_as_long_as_a_job_needs_it(tmp_path: Path) -> None:
    place, folder = uploads(tmp_path)
    file = received(place, "latent", LATENT)
    prompt = place.place({"1": {"class_type": "LoadLatent", "inputs": {"latent": "latent"}}}, {"latent": file}, {})
    (name,) = uploaded_names(prompt)
    assert name == f"{file.digest}.latent"
    place.keep({"latent": file}, prompt, "job")
    assert folder.sweep(unused_before_seconds=2**40, max_bytes=0) == []
    assert not file.path.exists() and (tmp_path / name).read_bytes() == LATENT
    folder.release("job")
    assert folder.sweep(unused_before_seconds=2**40, max_bytes=0) == [name]


def test_a_job_of_a_former_front_keeps_its_files(tmp_path: Path) -> None:
    place, _ = uploads(tmp_path)
    file = received(place, "latent", LATENT)
    prompt = place.place({"1": {"class_type": "LoadLatent", "inputs": {"latent": "latent"}}}, {"latent": file}, {})
    place.keep({"latent": file}, prompt, "job")
    again, folder = uploads(tmp_path)
    again.hold(prompt, "job")
    assert folder.sweep(unused_before_seconds=2**40, max_bytes=0) == []

"""Every way a file comes in and goes out, through the real processes; no model is needed for that."""

from __future__ import annotations

import base64
import io
from typing import Any

import httpx
import numpy
import pytest
from PIL import Image

from tests.flow.receiver import Receiver
from tests.flow.running_worker import RunningWorker
from tests.s3_server import S3Server, client

UPRIGHT = numpy.array([[0, 40, 80, 120], [160, 200, 240, 255]], dtype=numpy.uint8)  # 4 wide, 2 high


def encoded(image: Image.Image, form: str, **options: Any) -> bytes:
    held = io.BytesIO()
    image.save(held, form, **options)
    return held.getvalue()


def upright(scale: int = 16) -> Image.Image:
    return Image.fromarray(numpy.kron(UPRIGHT, numpy.ones((scale, scale), dtype=numpy.uint8))).convert("RGB")


def lying(form: str) -> bytes:
    """A camera's file: turned, and an EXIF orientation that says so."""
    exif = Image.Exif()
    exif[0x0112] = 6  # to be shown turned to the right
    options = {"lossless": True} if form == "WEBP" else {"quality": 100} if form == "JPEG" else {}
    return encoded(upright().transpose(Image.Transpose.ROTATE_90), form, exif=exif, **options)


def data_uri(content: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


def load_and_save(image: str) -> dict[str, Any]:
    return {
        "1": {"class_type": "LoadImage", "inputs": {"image": image}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "files/of a test"}},
    }


def mask_and_save(image: str, channel: str) -> dict[str, Any]:
    return {
        "1": {"class_type": "LoadImageMask", "inputs": {"image": image, "channel": channel}},
        "2": {"class_type": "MaskToImage", "inputs": {"mask": ["1", 0]}},
        "3": {"class_type": "SaveImage", "inputs": {"images": ["2", 0], "filename_prefix": "mask"}},
    }


def outputs_of(worker: RunningWorker, workflow: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    answer = worker.generate({"input": {"workflow_json": workflow, **fields}})
    assert answer.status_code == 200, answer.text
    return list(answer.json()["output"])


def fetched(output: dict[str, Any]) -> Image.Image:
    image = Image.open(io.BytesIO(httpx.get(output["url"]).content))
    image.load()
    return image


def difference(image: Image.Image, wanted: Image.Image) -> float:
    assert image.size == wanted.size
    return float(numpy.abs(numpy.asarray(image.convert("RGB"), float) - numpy.asarray(wanted, float)).mean())


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "TIFF", "BMP"])
def test_every_format_of_an_image_is_read(worker: RunningWorker, form: str) -> None:
    [output] = outputs_of(worker, load_and_save(data_uri(encoded(upright(), form))))
    assert difference(fetched(output), upright()) < 3


@pytest.mark.parametrize("form", ["JPEG", "WEBP", "PNG", "TIFF"])
def test_a_camera_image_comes_upright(worker: RunningWorker, form: str) -> None:
    [output] = outputs_of(worker, load_and_save(data_uri(lying(form))))
    assert difference(fetched(output), upright()) < 3


def test_a_mask_is_read_upright_from_a_channel(worker: RunningWorker) -> None:
    [output] = outputs_of(worker, mask_and_save(data_uri(lying("JPEG")), "red"))
    assert difference(fetched(output), upright()) < 3
    transparent = upright().convert("RGBA")
    transparent.putalpha(upright().convert("L"))
    [output] = outputs_of(worker, mask_and_save(data_uri(encoded(transparent, "PNG")), "alpha"))
    inverted = Image.fromarray(255 - numpy.asarray(upright()))
    assert difference(fetched(output), inverted) < 1


def test_an_image_comes_from_a_bucket_and_goes_to_one(worker: RunningWorker, s3_server: S3Server) -> None:
    client(s3_server).put_object(Bucket=s3_server.bucket, Key="in/an image.png", Body=encoded(upright(), "PNG"))
    s3 = {
        "access_key_id": s3_server.access_key_id,
        "secret_access_key": s3_server.secret_access_key,
        "endpoint_url": s3_server.endpoint_url,
        "bucket_name": s3_server.bucket,
        "addressing_style": "path",
        "key_template": "{request_id}/{node_id}/{index}-{filename}",
        "presign_seconds": 60,
    }
    [output] = outputs_of(
        worker,
        load_and_save(f"s3://{s3_server.bucket}/in/an image.png"),
        request_id="bucket",
        s3=s3,
        output={"format": "webp", "thumbnail_size": 16},
    )
    assert difference(fetched(output), upright()) < 5 and "X-Amz-Expires=60&" in output["url"]
    assert fetched(output["thumbnail"]).size == (16, 8)
    keys = [item["Key"] for item in client(s3_server).list_objects_v2(Bucket=s3_server.bucket)["Contents"]]
    mine = [key.removeprefix("bucket/2/") for key in keys if key.startswith("bucket/")]
    assert [mine[0][:2], mine[0][-5:], mine[1][:2], mine[1][-11:]] == ["0-", ".webp", "1-", "_thumb.webp"]


def test_a_latent_goes_out_and_comes_in_again(worker: RunningWorker, receiver: Receiver) -> None:
    empty = {"class_type": "EmptyLatentImage", "inputs": {"width": 64, "height": 64, "batch_size": 1}}
    save = {"class_type": "SaveLatent", "inputs": {"samples": ["1", 0], "filename_prefix": "kept"}}
    [first] = outputs_of(worker, {"1": empty, "2": save})
    assert (first["output_type"], first["filename"].endswith(".latent")) == ("latents", True)
    receiver.files["/a.latent"] = httpx.get(first["url"]).content
    load = {"class_type": "LoadLatent", "inputs": {"latent": f"{receiver.url}/a.latent"}}
    [second] = outputs_of(worker, {"1": load, "2": save})
    assert httpx.get(second["url"]).content[-4096:] == receiver.files["/a.latent"][-4096:]


def test_the_prompt_is_in_the_image_only_when_asked_for_though_the_engine_writes_none(
    worker: RunningWorker,
) -> None:
    drawn = load_and_save(data_uri(encoded(upright(), "PNG")))

    def said(level: str, form: str | None = None) -> dict[str, Any]:
        [output] = outputs_of(worker, drawn, output={"metadata": level} | ({"format": form} if form else {}))
        return {str(key): value for key, value in fetched(output).info.items()}

    assert "prompt" not in said("none")
    prompt = said("prompt")["prompt"]
    assert "LoadImage" in prompt and "darkroom/" in prompt and "base64" not in prompt
    assert "LoadImage" in str(said("prompt", "webp")["exif"])

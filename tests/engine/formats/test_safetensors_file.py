"""A `.safetensors` file that another program writes to, or replaces, while it is open."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from darkroom.engine.errors import BadModelFile
from darkroom.engine.formats.safetensors_file import SafetensorsFile, write_safetensors


def test_a_file_that_is_written_to_while_it_is_open_is_an_error_and_not_the_end_of_the_process(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_safetensors(path, {"weight": torch.ones(100_000)})
    file = SafetensorsFile(path)
    assert torch.equal(file.tensor("weight"), torch.ones(100_000))
    with path.open("r+b") as download:
        download.truncate(1000)
    with pytest.raises(BadModelFile, match="changed while it was in use, from 400,0.. to 1,000 bytes"):
        file.tensor("weight")


def test_a_file_whose_name_another_took_stays_what_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_safetensors(path, {"weight": torch.ones(4)})
    file = SafetensorsFile(path)
    write_safetensors(path, {"weight": torch.zeros(4)})
    file.check()
    assert torch.equal(file.tensor("weight"), torch.ones(4))


@pytest.mark.parametrize(
    "header",
    [
        b'{"a":' + b"[" * 100_000,
        b'{"a":{"dtype":"F32","shape":[1e400],"data_offsets":[0,4]}}',
        b'{"a":"' + b"x" * 100_000 + b'"}',
    ],
)
def test_a_header_that_cannot_be_read_is_a_bad_file(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(BadModelFile) as raised:
        SafetensorsFile(path)
    assert len(str(raised.value)) < 1000

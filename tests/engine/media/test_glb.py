"""Binary glTF files: what they hold, and what is refused."""

from __future__ import annotations

import io
import json
import struct
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from darkroom.engine.media.glb import glb_of
from darkroom.engine.media.mesh import Mesh, merged, rotated

CORNERS = torch.tensor([[[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]]])
FACES = torch.tensor([[[0, 1, 2], [0, 2, 3]]])


def described(data: bytes) -> tuple[dict[str, Any], bytes]:
    magic, version, length, json_length = struct.unpack_from("<4sIII", data)
    assert (magic, version, length) == (b"glTF", 2, len(data)) and len(data) % 4 == 0
    return json.loads(data[20 : 20 + json_length]), data[28 + json_length :]


def content(data: bytes, view: int) -> bytes:
    description, binary = described(data)
    found = description["bufferViews"][view]
    return binary[found["byteOffset"] :][: found["byteLength"]]


def test_a_file_says_what_it_holds() -> None:
    data = glb_of(Mesh(CORNERS, FACES).item(0), {"prompt": "{}"})
    description, _ = described(data)
    assert description["asset"]["extras"] == {"prompt": "{}"}
    assert np.frombuffer(content(data, 0), "<f4").reshape(-1, 3).tolist() == CORNERS[0].tolist()
    assert np.frombuffer(content(data, 1), "<u4").reshape(-1, 3).tolist() == FACES[0].tolist()
    assert description["accessors"][0]["max"] == [1.0, 1.0, 1.0]


def test_textures_need_places_on_them() -> None:
    texture = torch.full((1, 2, 2, 3), 0.5)
    bare, _ = described(glb_of(Mesh(CORNERS, FACES, texture=texture).item(0)))
    assert "images" not in bare
    data = glb_of(Mesh(CORNERS, FACES, texture=texture, uvs=torch.zeros(1, 4, 2)).item(0))
    description, _ = described(data)
    assert description["meshes"][0]["primitives"][0]["attributes"].keys() == {"POSITION", "TEXCOORD_0"}
    stored = Image.open(io.BytesIO(content(data, description["images"][0]["bufferView"])))
    assert np.asarray(stored)[0, 0].tolist() == [127, 127, 127]
    assert description["materials"][0]["pbrMetallicRoughness"]["baseColorFactor"] == [1.0] * 4


def test_colours_without_light_and_factors_of_a_material() -> None:
    colors = torch.full((1, 4, 3), 2.0)
    data = glb_of(Mesh(CORNERS, FACES, vertex_colors=colors, unlit=True).item(0))
    assert described(data)[0]["extensionsUsed"] == ["KHR_materials_unlit"]
    assert np.frombuffer(content(data, 2), "<f4").max() == 1.0  # clipped
    given = {"metallic_factor": 0.3, "emissive_factor": (2.0, 0, 0), "emissive_strength": 4.0, "double_sided": False}
    material = described(glb_of(Mesh(CORNERS, FACES, material=given).item(0)))[0]["materials"][0]
    assert material["pbrMetallicRoughness"]["metallicFactor"] == 0.3 and not material["doubleSided"]
    assert material["emissiveFactor"] == [1.0, 0.0, 0.0]
    assert material["extensions"] == {"KHR_materials_emissive_strength": {"emissiveStrength": 4.0}}


def test_padding_of_a_batch_is_left_out() -> None:
    mesh = Mesh(CORNERS, FACES, vertex_counts=torch.tensor([3]), face_counts=torch.tensor([1]))
    assert mesh.sizes() == [(3, 1)]
    assert described(glb_of(mesh.item(0)))[0]["accessors"][0]["count"] == 3


@pytest.mark.parametrize(
    ("mesh", "reason"),
    [
        (Mesh(CORNERS[:, :0], FACES), "empty"),
        (Mesh(CORNERS, FACES[:, :0]), "empty"),
        (Mesh(CORNERS, FACES + 2), "a triangle without its corners; got 5, expected 0 to 3"),
        (Mesh(CORNERS, FACES, normals=torch.zeros(1, 3, 3)), "normals of other corners; got 3, expected 4"),
    ],
)
def test_what_is_no_mesh_is_refused(mesh: Mesh, reason: str) -> None:
    with pytest.raises(ValueError, match=f"mesh: {reason}"):
        glb_of(mesh.item(0))


def test_normals_and_tangents_turn_with_the_corners() -> None:
    quarter = torch.tensor([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]])
    tangents = torch.tensor([1.0, 0, 0, -1]).expand(1, 4, 4)
    found = rotated(Mesh([CORNERS[0]], [FACES[0]], normals=CORNERS, tangents=tangents), quarter)
    assert found.vertices[0][1].tolist() == [0.0, 1.0, 0.0]
    assert found.normals is not None and found.normals[0][1].tolist() == [0.0, 1.0, 0.0]
    assert found.tangents is not None and found.tangents[0][0].tolist() == [0.0, 1.0, 0.0, -1.0]


def test_meshes_are_joined_with_white_where_colours_are_missing() -> None:
    first = Mesh(CORNERS, FACES, vertex_colors=torch.zeros(1, 4, 4))
    joined = merged([first, Mesh(CORNERS + 5, FACES)])
    assert joined.faces[0].max() == 7 and joined.uvs is None
    assert joined.vertex_colors is not None and joined.vertex_colors[0][4:].min() == 1.0

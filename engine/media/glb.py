"""Binary glTF 2.0 files (Khronos 2021, section 4) of one mesh, with its textures."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from darkroom.engine.media.mesh import Mesh

MAGIC, VERSION = b"glTF", 2
JSON_CHUNK, BINARY_CHUNK = 0x4E4F534A, 0x004E4942
FLOAT, UNSIGNED_INT, TRIANGLES, CORNER_BUFFER, INDEX_BUFFER = 5126, 5125, 4, 34962, 34963
LINEAR, CLAMP_TO_EDGE = 9729, 33071
VECTORS = {2: "VEC2", 3: "VEC3", 4: "VEC4"}
ATTRIBUTES = {"uvs": "TEXCOORD_0", "vertex_colors": "COLOR_0", "normals": "NORMAL", "tangents": "TANGENT"}
GREY, WHITE = [0.22, 0.22, 0.22, 1.0], [1.0, 1.0, 1.0, 1.0]


def glb_of(mesh: Mesh, metadata: Mapping[str, str] | None = None) -> bytes:
    """Return the file of one mesh without a batch. `metadata` are texts beside it.

    Raises ValueError for a mesh without corners or triangles, and for triangles of corners that are not there.
    """
    corners = _numbers(mesh.vertices, np.float32)
    triangles = _numbers(mesh.faces, np.int64)
    if not len(corners) or not len(triangles):
        raise ValueError(
            f"mesh: empty; got {len(corners)} corners and {len(triangles)} triangles, expected some of both"
        )
    if triangles.min() < 0 or triangles.max() >= len(corners):
        raise ValueError(
            f"mesh: a triangle without its corners; got {triangles.max()}, expected 0 to {len(corners) - 1}"
        )
    writer = _Writer()
    attributes = {"POSITION": writer.add_vectors(corners, with_range=True)}
    indices = writer.add_indices(triangles.astype(np.uint32))
    for name, attribute in ATTRIBUTES.items():
        values = getattr(mesh, name)
        if values is not None:
            attributes[attribute] = writer.add_vectors(_attached(name, values, len(corners)))
    material = _unlit(writer) if mesh.unlit and mesh.texture is None else _lit(writer, mesh, attributes)
    primitive = {"attributes": attributes, "indices": indices, "mode": TRIANGLES, "material": 0}
    return writer.file(primitive, material, metadata or {})


class _Writer:
    """The parts of a file, in the order in which they are added."""

    def __init__(self) -> None:
        self._binary = bytearray()
        self._description: dict[str, list[Any]] = {}
        self._extensions: list[str] = []

    def add_vectors(self, values: NDArray[np.float32], *, with_range: bool = False) -> int:
        """Add a vector for each corner; return the index of its accessor."""
        limits = {"max": values.max(axis=0).tolist(), "min": values.min(axis=0).tolist()} if with_range else {}
        view = self._add_view(values.tobytes(), target=CORNER_BUFFER)
        kind = VECTORS[values.shape[1]]
        return self._add("accessors", {**self._accessor(view, FLOAT, len(values), kind), **limits})

    def add_indices(self, values: NDArray[np.uint32]) -> int:
        """Add the corners of all triangles; return the index of their accessor."""
        view = self._add_view(values.tobytes(), target=INDEX_BUFFER)
        return self._add("accessors", self._accessor(view, UNSIGNED_INT, values.size, "SCALAR"))

    def add_texture(self, image: torch.Tensor) -> dict[str, int]:
        """Add an image [H, W, 3] as PNG; return what materials name it by."""
        content = io.BytesIO()
        pixels = (image.detach().cpu().float().clamp(0, 1).numpy() * 255).astype(np.uint8)
        Image.fromarray(pixels).save(content, "PNG")
        view = self._add_view(content.getvalue())
        source = self._add("images", {"bufferView": view, "mimeType": "image/png"})
        if "samplers" not in self._description:
            sampler = {"magFilter": LINEAR, "minFilter": LINEAR, "wrapS": CLAMP_TO_EDGE, "wrapT": CLAMP_TO_EDGE}
            self._add("samplers", sampler)
        return {"index": self._add("textures", {"source": source, "sampler": 0}), "texCoord": 0}

    def uses(self, extension: str) -> str:
        """Note that the file uses an extension; return its name."""
        self._extensions.append(extension)
        return extension

    def file(self, primitive: object, material: object, metadata: Mapping[str, str]) -> bytes:
        """Return the bytes of the file."""
        description = {
            "asset": {"version": "2.0", "generator": "Darkroom", **({"extras": dict(metadata)} if metadata else {})},
            "buffers": [{"byteLength": len(self._binary)}],
            **self._description,
            "materials": [material],
            "meshes": [{"primitives": [primitive]}],
            "nodes": [{"mesh": 0}],
            "scenes": [{"nodes": [0]}],
            "scene": 0,
            **({"extensionsUsed": self._extensions} if self._extensions else {}),
        }
        text = json.dumps(description).encode()
        text += b" " * (-len(text) % 4)
        size = 12 + 8 + len(text) + 8 + len(self._binary)
        header = struct.pack("<4sIIII", MAGIC, VERSION, size, len(text), JSON_CHUNK)
        return header + text + struct.pack("<II", len(self._binary), BINARY_CHUNK) + bytes(self._binary)

    def _add(self, kind: str, item: object) -> int:
        items = self._description.setdefault(kind, [])
        items.append(item)
        return len(items) - 1

    def _add_view(self, content: bytes, **target: int) -> int:
        view = {"buffer": 0, "byteOffset": len(self._binary), "byteLength": len(content), **target}
        self._binary += content + b"\0" * (-len(content) % 4)
        return self._add("bufferViews", view)

    @staticmethod
    def _accessor(view: int, component: int, count: int, kind: str) -> dict[str, Any]:
        return {"bufferView": view, "byteOffset": 0, "componentType": component, "count": count, "type": kind}


def _unlit(writer: _Writer) -> dict[str, Any]:
    """Return the material of colours that are shown as they are."""
    surface = {"baseColorFactor": WHITE, "metallicFactor": 0.0, "roughnessFactor": 1.0}
    extension = writer.uses("KHR_materials_unlit")
    return {"pbrMetallicRoughness": surface, "extensions": {extension: {}}, "doubleSided": True}


def _lit(writer: _Writer, mesh: Mesh, attributes: Mapping[str, int]) -> dict[str, Any]:
    """Return the material of a surface in light. Textures need places on them."""
    own = mesh.material or {}
    is_mapped = "TEXCOORD_0" in attributes
    textures = {
        name: writer.add_texture(image)
        for name in ("texture", "metallic_roughness", "normal_map", "emissive")
        if is_mapped and (image := getattr(mesh, name)) is not None
    }
    material: dict[str, Any] = {
        "pbrMetallicRoughness": _surface(textures, own, "COLOR_0" in attributes),
        "doubleSided": bool(own.get("double_sided", True)),
    }
    if mesh.occlusion_in_mr and "metallic_roughness" in textures:
        strength = float(own.get("occlusion_strength", 1.0))
        material["occlusionTexture"] = {**textures["metallic_roughness"], "strength": strength}
    if "normal_map" in textures:
        material["normalTexture"] = {**textures["normal_map"], "scale": float(own.get("normal_scale", 1.0))}
    return material | _glow(writer, textures.get("emissive"), own)


def _surface(textures: Mapping[str, Any], own: Mapping[str, Any], has_colors: bool) -> dict[str, Any]:
    """Return colour, metal and roughness; factors of the mesh's own below 0 leave those that follow from the rest."""
    is_colored = "texture" in textures or has_colors
    surface: dict[str, Any] = {
        "metallicFactor": 0.0,
        "roughnessFactor": 1.0 if is_colored else 0.5,
        "baseColorFactor": WHITE if is_colored else GREY,
    }
    if "texture" in textures:
        surface["baseColorTexture"] = textures["texture"]
    if "metallic_roughness" in textures:
        surface |= {"metallicRoughnessTexture": textures["metallic_roughness"]}
        surface |= {"metallicFactor": 1.0, "roughnessFactor": 1.0}
    if own.get("base_color_factor") is not None:
        surface["baseColorFactor"] = [float(value) for value in own["base_color_factor"]]
    for name, key in (("metallic_factor", "metallicFactor"), ("roughness_factor", "roughnessFactor")):
        if own.get(name, -1.0) >= 0.0:
            surface[key] = float(own[name])
    return surface


def _glow(writer: _Writer, texture: Mapping[str, int] | None, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the light that a surface emits; a texture without a colour is white."""
    factor = [float(value) for value in own.get("emissive_factor", (0.0, 0.0, 0.0))]
    if not any(value > 0.0 for value in factor):
        if texture is None:
            return {}
        factor = [1.0, 1.0, 1.0]
    glow: dict[str, Any] = {"emissiveFactor": [min(1.0, value) for value in factor]}
    if texture is not None:
        glow["emissiveTexture"] = texture
    strength = float(own.get("emissive_strength", 1.0))
    if strength != 1.0:
        extension = writer.uses("KHR_materials_emissive_strength")
        glow["extensions"] = {extension: {"emissiveStrength": strength}}
    return glow


def _attached(name: str, values: Any, num_corners: int) -> NDArray[np.float32]:
    found = _numbers(values, np.float32)
    if len(found) != num_corners:
        raise ValueError(f"mesh: {name} of other corners; got {len(found)}, expected {num_corners}")
    return found.clip(0.0, 1.0) if name == "vertex_colors" else found


def _numbers(values: Any, kind: Any) -> NDArray[Any]:
    array: NDArray[Any] = np.ascontiguousarray(values.detach().cpu().numpy().astype(kind))
    return array

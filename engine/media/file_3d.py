"""A 3D model as a file: FILE_3D and its kinds flow between nodes as this, with the members that ComfyUI's has."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

FORMATS = ("glb", "gltf", "fbx", "obj", "stl", "usdz", "ply", "splat", "spz", "ksplat")
KINDS = {
    "glb": "FILE_3D_GLB",
    "gltf": "FILE_3D_GLTF",
    "obj": "FILE_3D_OBJ",
    "fbx": "FILE_3D_FBX",
    "stl": "FILE_3D_STL",
    "usdz": "FILE_3D_USDZ",
    "ply": "FILE_3D_PLY",
    "splat": "FILE_3D_SPLAT",
    "spz": "FILE_3D_SPZ",
    "ksplat": "FILE_3D_KSPLAT",
}
"""Socket types by format."""


class File3D:
    """A 3D model in a file or in memory. `format` is the ending of its name without a dot, in lower case."""

    def __init__(self, source: str | Path | io.BytesIO, file_format: str = "") -> None:
        self._source = str(source) if isinstance(source, Path) else source
        inferred = Path(self._source).suffix if isinstance(self._source, str) else ""
        self.format = (file_format or inferred).lstrip(".").lower()

    @property
    def is_disk_backed(self) -> bool:
        """True for a model in a file."""
        return isinstance(self._source, str)

    def get_source(self) -> str | io.BytesIO:
        """Return the path, or the data from their beginning."""
        if not isinstance(self._source, str):
            self._source.seek(0)
        return self._source

    def get_bytes(self) -> bytes:
        return Path(self._source).read_bytes() if isinstance(self._source, str) else self._source.getvalue()

    def get_data(self) -> io.BytesIO:
        """Return the content as a stream from its beginning."""
        return io.BytesIO(self.get_bytes())

    def save_to(self, path: str) -> str:
        """Write the content to a path, making its folder. Return the path."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if not isinstance(self._source, str):
            target.write_bytes(self._source.getvalue())
        elif Path(self._source).resolve() != target.resolve():
            shutil.copyfile(self._source, target)
        return str(target)

    def suffix(self) -> str:
        """Return the ending of a file's name, `.glb` where the format is not known.

        Raises ValueError for a format that is none of a 3D model.
        """
        found = self.format or "glb"
        if found not in FORMATS:
            raise ValueError(f"3D file: unknown format; got {found!r}, expected one of {', '.join(FORMATS)}")
        return f".{found}"

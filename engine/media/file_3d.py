"""FILE_3D: a file of a 3D model, on disk or in memory, with the members that ComfyUI's nodes use."""

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
    """A file. `format` is its ending without a dot, in small letters."""

    def __init__(self, source: str | Path | io.BytesIO, file_format: str = "") -> None:
        self._source = str(source) if isinstance(source, Path) else source
        self.format = file_format or (Path(self._source).suffix if isinstance(self._source, str) else "")

    @property
    def format(self) -> str:
        return self._format

    @format.setter
    def format(self, value: str) -> None:
        self._format = value.lstrip(".").lower()

    @property
    def suffix(self) -> str:
        """Ending of a file's name, `.glb` where the format is not known.

        Raises ValueError for a format that is none of a 3D model.
        """
        found = self._format or "glb"
        if found not in FORMATS:
            raise ValueError(f"3D file: unknown format; got {found!r}, expected one of {', '.join(FORMATS)}")
        return f".{found}"

    @property
    def is_disk_backed(self) -> bool:
        """True for a model in a file."""
        return isinstance(self._source, str)

    def get_source(self) -> str | io.BytesIO:
        """Return the path, or the stream from its start."""
        if not isinstance(self._source, str):
            self._source.seek(0)
        return self._source

    def get_data(self) -> io.BytesIO:
        """Return the content as a stream."""
        return io.BytesIO(self.get_bytes())

    def get_bytes(self) -> bytes:
        """Return the content."""
        return Path(self._source).read_bytes() if isinstance(self._source, str) else self._source.getvalue()

    def size_bytes(self) -> int:
        """Return the size of the content."""
        if isinstance(self._source, str):
            return Path(self._source).stat().st_size
        return self._source.getbuffer().nbytes

    def save_to(self, path: str | Path) -> str:
        """Write the content to a file; return its path."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if not isinstance(self._source, str):
            target.write_bytes(self._source.getvalue())
        elif Path(self._source).resolve() != target.resolve():
            shutil.copyfile(self._source, target)
        return str(target)

"""Files, samplers and limits of this moment, on which the declarations of nodes depend."""

from __future__ import annotations

import mimetypes
import sys
from collections.abc import Callable
from pathlib import Path

from darkroom.engine.diffusion.sampling_tables import SamplingTables
from darkroom.engine.memory import machine_memory
from darkroom.engine.models.files.faults import FileFaults
from darkroom.engine.models.files.folders import ModelFolders
from darkroom.engine.runtime.outputs import FileFolders


class Environment:
    """Model files, input files, samplers and schedules that exist now, on which node declarations depend."""

    def __init__(
        self,
        folders: ModelFolders,
        faults: FileFaults,
        files: FileFolders,
        sampling: SamplingTables,
        max_pixels: Callable[[], int],
    ) -> None:
        self._folders = folders
        self._faults = faults
        self._files = files
        self.sampler_names = sampling.sampler_names
        self.schedule_names = sampling.schedule_names
        self.max_pixels = max_pixels

    def model_files(self, kind: str) -> list[str]:
        return self._folders.names(kind)

    def model_problem(self, kind: str, name: str) -> str | None:
        return self._faults.find(kind, name)

    def input_files(self, content: str) -> list[str]:
        """Return the files in the input folder itself, sorted.

        `content` is a media type (`image`), a file extension (`.latent`), or "" for all files.
        """
        folder = self._files.input
        names = sorted(path.name for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []
        if not content or content.startswith("."):
            return [name for name in names if name.endswith(content)]
        return [name for name in names if (mimetypes.guess_type(name)[0] or "").startswith(f"{content}/")]

    def input_path(self, name: str) -> Path:
        return self._files.path(name)

    def free_bytes(self) -> int:
        return free_bytes()


def free_bytes() -> int:
    """Return the memory that is free now, without bound where it is not known."""
    return machine_memory.available_bytes() or sys.maxsize

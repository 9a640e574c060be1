"""Exchange of tensors between the engines of one worker that compute for one prompt, as files of a folder they share.

A piece of the work belongs to the engine that creates its claim. Nobody depends on another: what is claimed and does
not come is computed by the engine that needs it.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from contract.wire import SHARED_WORK_FOLDER
from engine.cancel import CancelToken

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
LOOK_SECONDS: Final = 0.002
LEAST_WAIT_SECONDS: Final = 5.0
PATIENCE: Final = 3  # times as long as the slowest piece took here


class Exchange:
    """Folder of the pieces of one prompt. Raises ValueError for a name that is none."""

    def __init__(self, output_folder: Path, name: str) -> None:
        if not NAME.fullmatch(name) or ".." in name:
            raise ValueError(f"exchange: not a name; got {name[:80]!r}, expected letters, digits, '.', '_' and '-'")
        self._folder = output_folder / SHARED_WORK_FOLDER / name

    def open(self) -> None:
        """Make the folder. For the owner: a helper that comes too late finds none."""
        self._folder.mkdir(parents=True, exist_ok=True)

    def claim(self, piece: str) -> bool:
        """Return True if the piece is the caller's from now on."""
        try:
            os.close(os.open(self._folder / f"{piece}.claim", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except (FileExistsError, FileNotFoundError):  # the folder is removed when the prompt has ended
            return False
        return True

    def put(self, piece: str, tensor: torch.Tensor) -> None:
        """Hand a piece over, in its type: what is made of it rounds by it."""
        tensor = tensor.detach().cpu()
        part = self._folder / f"{piece}.part"
        with part.open("wb") as file:
            np.save(file, _storable(tensor), allow_pickle=False)
        part.replace(self._folder / f"{piece}.npy")

    def take(self, piece: str) -> torch.Tensor | None:
        """Return a piece that was handed over, once; None while it is not there, and for a file that is broken."""
        file = self._folder / f"{piece}.npy"
        try:
            tensor = torch.from_numpy(np.load(file, allow_pickle=False))
        except (OSError, ValueError):
            return None
        file.unlink(missing_ok=True)
        return tensor.view(torch.bfloat16) if tensor.dtype == torch.int16 else tensor

    def wait_for(self, piece: str, slowest_seconds: float, cancel: CancelToken) -> torch.Tensor | None:
        """Return a piece that another engine computes; None if it takes far longer than pieces take here."""
        until = time.monotonic() + max(LEAST_WAIT_SECONDS, PATIENCE * slowest_seconds)
        while (tensor := self.take(piece)) is None:
            cancel.check()
            if time.monotonic() > until:
                return None
            time.sleep(LOOK_SECONDS)
        return tensor


def _storable(tensor: torch.Tensor) -> Any:
    """Return a tensor as NumPy's array; it has no bfloat16, whose bits travel as integers, as no piece is otherwise."""
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()

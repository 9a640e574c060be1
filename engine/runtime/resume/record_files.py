"""Files of one sampling run's record: `FIRST.safetensors`, each with the evaluations from number FIRST on.

A file appears whole or not at all and is never changed, so that a copy of the folder may be made at any time.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

SUFFIX = ".safetensors"


class RecordUnreadable(Exception):
    """A record that is damaged, or of another sampling run."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Answers `[B, C, h, w]` of the sides of one evaluation. `sides` is False where the answer is 0 and not kept.

    `random_before` is the random state at the start of sampling, with the first evaluation alone; `random_after` that
    after an evaluation which has drawn random numbers.
    """

    answers: tuple[torch.Tensor, ...]
    sides: tuple[bool, ...]
    random_before: torch.Tensor | None = None
    random_after: torch.Tensor | None = None

    @property
    def num_bytes(self) -> int:
        return sum(answer.numel() * answer.element_size() for answer in self.answers)

    def fits(self, sides: Sequence[object], x: torch.Tensor) -> bool:
        """Return True if this may be the answer to an evaluation of `x`."""
        is_same = self.sides == tuple(side is not None for side in sides)
        return is_same and all(answer.shape == x.shape for answer in self.answers)

    def answers_for(self, sides: Sequence[object], x: torch.Tensor) -> list[torch.Tensor]:
        there = iter(self.answers)
        return [torch.zeros_like(x) if side is None else next(there).to(x.device) for side in sides]


class RecordFiles:
    """The folder of one record. It is made with the first file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def append(self, first: int, evaluations: Sequence[Evaluation], fingerprint: str) -> None:
        """Write evaluations, of which the first has that number. Raises OSError."""
        tensors: dict[str, torch.Tensor] = {}
        for number, evaluation in enumerate(evaluations, first):
            for side, answer in enumerate(evaluation.answers):
                tensors[f"{number}.{side}"] = answer.cpu().contiguous()
            if evaluation.random_before is not None:
                tensors[f"{number}.before"] = evaluation.random_before
            if evaluation.random_after is not None:
                tensors[f"{number}.after"] = evaluation.random_after
        about = {"fingerprint": fingerprint, "sides": json.dumps([evaluation.sides for evaluation in evaluations])}
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{first:08d}{SUFFIX}"
        part = path.with_suffix(".part")
        with part.open("wb") as file:
            file.write(save(tensors, about))
            file.flush()
            os.fsync(file.fileno())  # the machine may be the next thing that is lost
        part.replace(path)

    def read(self, fingerprint: str) -> list[Evaluation]:
        """Return the evaluations from the first on; those behind a missing file are removed.

        Raises RecordUnreadable for a damaged record and for one of another sampling run.
        """
        found: list[Evaluation] = []
        for path in sorted(self._folder.glob(f"*{SUFFIX}")):
            if path.stem != f"{len(found):08d}":
                path.unlink(missing_ok=True)
                continue
            found += _read_file(path, len(found), fingerprint)
        return found

    def clear(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def _read_file(path: Path, first: int, fingerprint: str) -> list[Evaluation]:
    with contextlib.ExitStack() as closing:
        try:
            file = closing.enter_context(safe_open(path, "pt"))
            about = file.metadata() or {}
            if about.get("fingerprint") != fingerprint:
                raise RecordUnreadable(f"{path.name} is of another sampling run")
            names = set(file.keys())
            return [
                Evaluation(
                    tuple(file.get_tensor(f"{number}.{index}") for index in range(sum(sides))),
                    tuple(map(bool, sides)),
                    file.get_tensor(f"{number}.before") if f"{number}.before" in names else None,
                    file.get_tensor(f"{number}.after") if f"{number}.after" in names else None,
                )
                for number, sides in enumerate(json.loads(about["sides"]), first)
            ]
        except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
            raise RecordUnreadable(f"{path.name}: {error}") from None

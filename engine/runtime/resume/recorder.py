"""Records of a prompt's sampling runs, from which another engine goes on where this one was lost."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from darkroom.contract.wire import KEY_FORM, is_checkpoint_key
from darkroom.engine.diffusion.recorded_steps import SamplingStart
from darkroom.engine.memory.random_state import RandomState
from darkroom.engine.runtime.resume.record_files import Evaluation, RecordFiles, RecordUnreadable

log = logging.getLogger(__name__)

FORMAT = "1"
MAX_HELD_BYTES = 64 << 20  # of answers that are not written yet, on the device
MAX_RECORD_BYTES = 8 << 30  # of one sampling run


class SamplingRecord:
    """Record of one sampling run: answers that are there are given again, new ones are added to it."""

    def __init__(
        self,
        files: RecordFiles,
        fingerprint: str,
        random: RandomState,
        seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self._files, self._fingerprint, self._random = files, fingerprint, random
        self._seconds, self._clock = seconds, clock
        self._known = self._read()
        self.num_known = len(self._known)
        self._position = 0
        self._held: list[Evaluation] = []
        self._held_bytes = self._written_bytes = 0
        self._begin = random.get()
        if self._known and self._known[0].random_before is not None:
            self._begin = self._known[0].random_before
            random.set(self._begin)
        self._written_at = clock()
        self._has_written = bool(self._known)

    def evaluate(
        self, sides: Sequence[object], x: torch.Tensor, compute: Callable[[], list[torch.Tensor]]
    ) -> list[torch.Tensor]:
        position, self._position = self._position, self._position + 1
        if position < len(self._known):
            found = self._known[position]
            if found.fits(sides, x):
                if found.random_after is not None:
                    self._random.set(found.random_after)
                return found.answers_for(sides, x)
            log.warning("checkpoint ignored from evaluation %d: it is of another latent", position)
            self._known = self._known[:position]
        before = self._random.get()
        answers = compute()
        after = self._random.get()
        self._hold(
            Evaluation(
                tuple(answer.clone() for side, answer in zip(sides, answers, strict=True) if side is not None),
                tuple(side is not None for side in sides),
                random_before=self._begin if position == 0 else None,
                random_after=None if torch.equal(before, after) else after,
            ),
            position,
        )
        return answers

    def _hold(self, evaluation: Evaluation, position: int) -> None:
        if self._written_bytes > MAX_RECORD_BYTES:
            return
        self._held.append(evaluation)
        self._held_bytes += evaluation.num_bytes
        if self._clock() - self._written_at >= self._seconds or self._held_bytes > MAX_HELD_BYTES:
            self.write()

    def write(self) -> None:
        """Write the answers that are held. A disk that refuses them costs the checkpoint, not the run."""
        if not self._held:
            return
        held, self._held = self._held, []
        self._written_bytes += self._held_bytes
        self._held_bytes, self._written_at = 0, self._clock()
        try:
            self._files.append(self._position - len(held), held, self._fingerprint)
            self._has_written = True
        except OSError as error:
            self._written_bytes = MAX_RECORD_BYTES + 1  # the record would have a hole
            log.warning("checkpoint not written: %s", error)

    def finish(self) -> None:
        """Write the rest of a run that has ended, where a part of it is written: a later node may take long."""
        if self._has_written:
            self.write()

    def _read(self) -> list[Evaluation]:
        try:
            return self._files.read(self._fingerprint)
        except RecordUnreadable as error:
            log.warning("checkpoint ignored: %s", error)
            self._files.clear()
            return []


class RunRecorder:
    """Records of the sampling runs of one prompt, in a folder of its own.

    `place` returns the node that runs now, as a text that is the same in every run of the prompt.
    """

    def __init__(
        self,
        folder: Path,
        seconds: float,
        device: torch.device,
        place: Callable[[], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._seconds, self._device = folder, seconds, device
        self._place, self._clock = place, clock
        self._num_of_place: dict[str, int] = {}

    @contextmanager
    def sampling(self, start: SamplingStart) -> Iterator[SamplingRecord | None]:
        if start.obstacle:
            log.info("sampling not recorded: %s", start.obstacle)
            yield None
            return
        place = self._place()
        number = self._num_of_place[place] = self._num_of_place.get(place, -1) + 1
        name = hashlib.sha256(f"{place}\n{number}".encode()).hexdigest()[:16]
        files = RecordFiles(self._folder / name)
        record = SamplingRecord(files, _fingerprint(start), RandomState(self._device), self._seconds, self._clock)
        if record.num_known:
            log.info("sampling resumed after %d evaluations", record.num_known)
        try:
            yield record
        except BaseException:  # it may have been interrupted to go on elsewhere
            record.write()
            raise
        record.finish()


def folder_of_key(directory: Path | None, key: object) -> Path | None:
    """Return the folder of a prompt's records, None without a directory or a key.

    Raises ValueError for what is no key.
    """
    if key is None:
        return None
    if not is_checkpoint_key(key):
        raise ValueError(f"checkpoint: no key; got {key!r:.100}, expected {KEY_FORM}")
    return None if directory is None else directory / str(key)


def _fingerprint(start: SamplingStart) -> str:
    digest = hashlib.sha256(f"{FORMAT}\n{start.sampler}\n{start.seed}\n{start.noise.device.type}\n".encode())
    for tensor in (start.noise, start.latent_image, start.sigmas, start.denoise_mask):
        if tensor is not None:
            digest.update(f"{tensor.dtype}{tuple(tensor.shape)}\n".encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()

"""Errors of the engine, grouped by who must act.

    EngineError
      CallerError                 the prompt or a file it names is wrong; a retry is useless
        PromptRejected            validation found problems; nothing ran
        BadInputFile              a file that a node reads is missing, may not be read, or leaves its folder
        BadFileName               a name that no file can be saved under
        BadModelFile              a checkpoint (or VAE, text encoder...) cannot be read or is of no supported family
      RunError                    this run failed, the engine is fine
        NodeFailed                a node raised
        OutOfMemory               the device had too little memory, also after all other models were evicted
        Interrupted               the run was cancelled
        DownloadEnded             a model file's download ended while it was read; another run may find the file
      PlatformError               the process or the device cannot be trusted any more
        DeviceLost                the accelerator is unreachable or its context is invalid: replace the worker

`EngineError`, `CallerError`, `RunError` and `PromptRejected` are in `contract/errors.py`: the front checks prompts too.
Every class has a stable `code`. The engine has no HTTP codes: `engine/server` and the worker map to them.
"""

from __future__ import annotations

from collections.abc import Sequence

from darkroom.contract.errors import CallerError, EngineError, RunError


class PlatformError(EngineError):
    code = "platform_error"


class BadModelFile(CallerError):
    """A model file that is truncated, has other content than its name implies, or is of an unsupported family."""

    code = "bad_model_file"

    def __init__(self, file_name: str, found: str, expected: str) -> None:
        super().__init__(f"{file_name}: {found}; expected {expected}")
        self.file_name = file_name
        self.found = found
        self.expected = expected


class BadInputFile(CallerError, ValueError):
    """An input file of a node that does not exist, does not belong to the run, or is outside its folder."""

    code = "bad_input_file"


class BadFileName(CallerError, ValueError):
    """A name under which no file can be saved: outside the folder, too long, or with a null character."""

    code = "bad_file_name"


class NodeFailed(RunError):
    code = "node_failed"

    def __init__(self, node_id: str, class_type: str, message: str) -> None:
        super().__init__(f"{class_type} (node {node_id}): {message}")
        self.node_id = node_id
        self.class_type = class_type


class OutOfMemory(RunError):
    """Failure to allocate memory on the device.

    `needed_bytes` and `free_bytes` are 0 when the device did not report them. `frames` is the place of the failure, in
    words, for an error that was caught before: a retained traceback would keep the objects of its frames alive.
    """

    code = "out_of_memory"

    def __init__(self, message: str, *, needed_bytes: int = 0, free_bytes: int = 0, frames: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.frames = frames
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes


class DownloadEnded(RunError):
    """A model file whose download failed, or began anew, while a run read it. Nothing was computed with it."""

    code = "download_ended"


class Interrupted(RunError):
    """Cancellation of a run, raised by `CancelToken.check()`; nodes let it pass."""

    code = "interrupted"


class DeviceLost(PlatformError):
    code = "device_lost"

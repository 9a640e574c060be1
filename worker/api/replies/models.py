"""Replies about the models that the worker knows."""

from __future__ import annotations

from pydantic import Field

from darkroom.worker.api.replies.reply import Reply
from darkroom.worker.models.catalogue import Fit, Group


class KnownModelEntry(Reply):
    """A model that `/models/fetch` takes by its name. `used_at`: UTC epoch of the last use of a downloaded file."""

    name: str
    label: str
    group: Group
    families: list[str]
    licences: list[str]
    is_gated: bool = Field(description="Its source gives a file to accounts alone that have accepted the licence")
    size_bytes: int | None = Field(description="null where the size of a file is not known")
    is_size_exact: bool
    num_files: int
    num_here: int
    fits: Fit
    used_at: float | None
    percent: float | None = Field(description="Of the file on its way that has come least far; null without one")
    problem: str | None = Field(description="Why the last download of a file failed")


class KnownModels(Reply):
    """Known models, and the memory of the smallest device that they were compared with."""

    device_bytes: int | None
    is_processor: bool
    models: list[KnownModelEntry]


class FetchBegun(Reply):
    """Files that are being fetched, by their places below `models/`; none where all are here."""

    name: str
    files: list[str]

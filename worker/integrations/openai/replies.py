"""Replies in the form of OpenAI's images API."""

from __future__ import annotations

from typing import Literal

from darkroom.worker.api.replies.reply import Reply


class OpenAiImage(Reply):
    """One image: its data, or its link."""

    b64_json: str | None = None
    url: str | None = None


class OpenAiImages(Reply):
    """Images in the format of OpenAI's images API. `created` is in epoch seconds."""

    created: int
    data: list[OpenAiImage]
    size: str | None = None
    output_format: str | None = None


class OpenAiModel(Reply):
    """Something that `model` may name."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class OpenAiModels(Reply):
    """Names that `model` may have."""

    object: Literal["list"]
    data: list[OpenAiModel]


class OpenAiErrorEntry(Reply):
    """The reason of a refusal; `param` is the field."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class OpenAiError(Reply):
    """A refusal in the format of OpenAI's API."""

    error: OpenAiErrorEntry

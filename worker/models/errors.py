"""Errors of the model commands."""

from __future__ import annotations

from typing import ClassVar


class ModelsError(Exception):
    """Failure of a model command; `exit_code` is its cause for scripts."""

    exit_code: ClassVar[int] = 1


class UnknownModel(ModelsError):
    exit_code = 2


class HubUnreachable(ModelsError):
    """Error without a reply from the hub within the time limit, or at all. Nothing was downloaded."""

    exit_code = 3


class ModelBroken(ModelsError):
    """Error for a file without the expected content."""

    exit_code = 4


class DownloadBroke(ModelsError):
    """Error when the hub replied and the download did not finish; the partial file is kept and resumed."""

    exit_code = 5

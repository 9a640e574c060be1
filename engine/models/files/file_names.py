"""FileNames: the names of the model files of one folder, as a list that keeps the folder."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class FileNames(list[str]):
    """Names of the files of a kind, for inputs that offer them. Lists that are added on either side keep the kind."""

    def __init__(self, names: Iterable[str], kind: str) -> None:
        super().__init__(names)
        self.kind = kind

    def __add__(self, other: Any, /) -> Any:
        return type(self)([*self, *other], self.kind)

    def __radd__(self, other: Any, /) -> Any:
        return type(self)([*other, *self], self.kind)

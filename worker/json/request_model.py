"""Base of the models of request bodies, in which null means "left out", as typed clients write it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, model_validator


class RequestModel(BaseModel):
    """Model of an object in a request. A null for an optional field leaves the field's default."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        return {name: value for name, value in given.items() if value is not None or cls._needs(name)}

    @classmethod
    def _needs(cls, name: object) -> bool:
        field = cls.model_fields.get(name) if isinstance(name, str) else None
        return field is not None and field.is_required()

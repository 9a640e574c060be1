"""Base of the replies' bodies."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Reply(BaseModel):
    """Base of the replies. Later versions may add fields."""

    model_config = ConfigDict(extra="allow", json_schema_serialization_defaults_required=False)

"""Metadata that saved files carry."""

from __future__ import annotations

from collections.abc import Mapping

from darkroom.engine.nodes.base import NodeContext


def metadata_of(context: NodeContext, prompt: object, extra_pnginfo: Mapping[str, object] | None) -> dict[str, object]:
    """Return the client's entries and `prompt`, or no entry if files are saved without metadata."""
    if not context.embed_metadata:
        return {}
    return {**(extra_pnginfo or {}), **({} if prompt is None else {"prompt": prompt})}

"""The node that saves texts."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Annotated

from darkroom.engine.nodes.base import NodeContext, NodeOutput
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.basic.patterns import MAX_TEXT_CHARACTERS, TextTooLong
from darkroom.engine.nodes.library.basic.value_texts import json_text
from darkroom.engine.nodes.markers import Out, Socket
from darkroom.engine.nodes.sockets import ExtraPngInfo, Prompt
from darkroom.engine.nodes.widgets import Combo, FilePrefix, Text

FORMATS = ("txt", "csv", "md", "json")


@node("SaveText", display_name="Save Text", category="text", python_module="comfy_extras.nodes_text", is_output=True,
      comfyui_version="0.33.0")  # fmt: skip
def save_text(
    context: NodeContext,
    *,
    text: Annotated[str, Text(multiline=False, extra={"forceInput": True})],
    filename_prefix: Annotated[str, FilePrefix(multiline=False)] = "ComfyUI",
    format: Annotated[str, Combo(FORMATS)] = "txt",
    prompt: Prompt = None,
    extra_pnginfo: ExtraPngInfo = None,
) -> Annotated[NodeOutput, Socket("STRING"), Out("text")]:
    """Save a text in a file of its own. JSON is indented.

    A text that is no JSON, or would be too long with indents, is saved as it is.
    Raises TypeError for what is no text, and TextTooLong.
    """
    if not isinstance(text, str):
        raise TypeError(f"text: no text; got {type(text).__name__}, expected a text")
    if len(text) > MAX_TEXT_CHARACTERS:
        raise TextTooLong("text", MAX_TEXT_CHARACTERS)
    output = context.files.save_path(filename_prefix, suffix=f".{format}")
    context.files.submit(partial(_write, output.path, _indented(text) if format == "json" else text))
    return NodeOutput({"text": (text,), "files": [output.shown()]}, (text,))


def _indented(text: str) -> str:
    try:
        return json_text(json.loads(text), 2)
    except (ValueError, RecursionError):  # TextTooLong too: indents may make a thousand times as much of nested lists
        return text


def _write(path: Path, text: str) -> None:
    path.write_bytes(text.encode("utf-8", "surrogatepass"))


NODES = (save_text,)

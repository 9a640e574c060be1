"""Nodes that save vector images."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Annotated

from darkroom.engine.nodes.base import NodeContext, NodeOutput
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.file_metadata import metadata_of
from darkroom.engine.nodes.markers import Out, Socket
from darkroom.engine.nodes.sockets import SVG, ExtraPngInfo, Prompt
from darkroom.engine.nodes.widgets import FilePrefix

ROOT_TAG = re.compile(r"<svg\b[^>]*(?<!/)>")


@node(
    "SaveSVGNode", display_name="Save SVG", category="image", is_output=True, python_module="comfy_extras.nodes_images"
)
def save_svg(
    context: NodeContext,
    *,
    svg: SVG,
    filename_prefix: Annotated[str, FilePrefix(multiline=False)] = "svg/ComfyUI",
    prompt: Prompt = None,
    extra_pnginfo: ExtraPngInfo = None,
) -> Annotated[NodeOutput, Socket("SVG"), Out("svg")]:
    """Save SVG documents with the prompt in their `metadata` element."""
    metadata = metadata_of(context, prompt, extra_pnginfo)
    shown = []
    for index, document in enumerate(svg.data):
        output = context.files.save_path(filename_prefix, suffix=".svg", batch_index=index)
        text = document.getvalue().decode("utf-8")
        written = with_metadata(text, json.dumps(metadata, indent=2)) if metadata else text
        context.files.submit(partial(_write, output.path, written))
        shown.append(output.shown())
    return NodeOutput({"images": shown}, (svg,))


def with_metadata(document: str, text: str) -> str:
    """Return an SVG document with a text as the first child of its root, in a CDATA section."""
    found = ROOT_TAG.search(document)
    if found is None:
        return document
    content = text.replace("]]>", "]]]]><![CDATA[>")  # the end of a section cannot be escaped within it
    return f"{document[: found.end()]}\n<metadata><![CDATA[{content}]]></metadata>{document[found.end() :]}"


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


NODES = (save_svg,)

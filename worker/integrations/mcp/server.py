"""`darkroom mcp`: a server of the Model Context Protocol by which assistants draw with a worker.

Each modifier and each stored workflow is a tool whose input schema is its own; `run_workflow` runs a prompt. A result
has a small image for the assistant to look at, and the file or the link of the whole one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from darkroom.client import AsyncClient, JobFailed, Output, Request, RequestRefused, Result, WorkerUnreachable
from darkroom.worker.version import version

STORED_PREFIX: Final = "workflow_"
RUN_WORKFLOW: Final = "run_workflow"
THUMBNAIL_PX: Final = 512
DELIVERY: Final[Mapping[str, Any]] = {"output": {"thumbnail_size": THUMBNAIL_PX}}
WORKFLOW_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["workflow_json"],
    "properties": {
        "workflow_json": {
            "type": "object",
            "description": "In ComfyUI's API format, or as its page saves it.",
        },
        "overrides": {"type": "object", "description": 'Values of inputs, such as {"6.text": "a fox", "#seed": 5}.'},
    },
}
INSTRUCTIONS: Final = "Draws images on a GPU worker. A seed that is left out is random; the result says which it was."


@dataclass(frozen=True, slots=True)
class DrawingTools:
    """Tools over one worker. `folder` is where images are saved and where names of input files are looked up."""

    client: AsyncClient
    folder: Path | None = None

    async def listed(self) -> list[types.Tool]:
        """Return the tools that the worker has now. Raises the client's errors."""
        tools = [
            types.Tool(name=entry["name"], description=entry["description"], input_schema=entry["schema"])
            for entry in await self.client.modifiers()
            if not entry.get("error")
        ]
        tools += [
            types.Tool(
                name=f"{STORED_PREFIX}{entry['name']}",
                description=entry["description"] or f"The stored workflow {entry['name']}.",
                input_schema=entry["schema"],
            )
            for entry in await self.client.workflows()
        ]
        about = "Run a workflow, given as JSON, and return its images."
        return [*tools, types.Tool(name=RUN_WORKFLOW, description=about, input_schema=WORKFLOW_SCHEMA)]

    async def call(
        self, context: ServerRequestContext[Any], name: str, given: Mapping[str, Any]
    ) -> types.CallToolResult:
        """Draw by a tool and return the images, or what is wrong."""
        try:
            request, last = self._request(name, given), 0.0
            async for event in self.client.stream(request):
                if event.result is not None:
                    if event.result.status != "completed":
                        raise JobFailed(event.result)
                    return types.CallToolResult(content=await self._content(event.result))
                if event.percent is not None and event.percent > last:
                    last = event.percent
                    await context.session.report_progress(last, 100.0, event.message)
        except (RequestRefused, JobFailed, WorkerUnreachable, OSError) as error:
            return types.CallToolResult(content=[types.TextContent(text=_reason(error))], is_error=True)
        return types.CallToolResult(content=[types.TextContent(text="The job has no result")], is_error=True)

    def _request(self, name: str, given: Mapping[str, Any]) -> Request:
        values = {key: self._with_file(value) for key, value in given.items()}
        if name == RUN_WORKFLOW:
            overrides = {key: self._with_file(value) for key, value in (given.get("overrides") or {}).items()}
            return Request(workflow=given.get("workflow_json") or {}, overrides=overrides, has_data=True, more=DELIVERY)
        if name.startswith(STORED_PREFIX):
            stored = name.removeprefix(STORED_PREFIX)
            return Request(stored=stored, inputs=values, has_data=True, more=DELIVERY)
        return Request(modifier=name, modifications=values, has_data=True, more=DELIVERY)

    def _with_file(self, value: Any) -> Any:
        """Return the file that a value names within the folder, else the value."""
        if self.folder is None or not isinstance(value, str) or not 0 < len(value) < 250 or "\n" in value:
            return value
        folder = self.folder.resolve()
        path = (folder / value).resolve()
        return path if path.is_relative_to(folder) and path.is_file() else value

    async def _content(self, result: Result) -> list[types.ContentBlock]:
        content: list[types.ContentBlock] = []
        for index, output in enumerate(result.outputs):
            shown = _image(output)
            if shown is not None:
                content.append(shown)
            if output.is_file:
                content.append(types.TextContent(text=await self._kept(result, output, index)))
            elif output.text is not None:
                content.append(types.TextContent(text=output.text))
        if result.parameters:
            content.append(types.TextContent(text=json.dumps({"parameters": dict(result.parameters)})))
        return content

    async def _kept(self, result: Result, output: Output, index: int) -> str:
        """Return the location of the whole file: saved in the folder, else its link."""
        if self.folder is None:
            return output.url or output.filename
        path = self.folder / f"{result.id[:8]}_{index + 1}{Path(output.filename).suffix}"
        return f"Saved as {await self.client.save(output, path)}"


def _image(output: Output) -> types.ImageContent | None:
    """Return the image that an assistant sees: the thumbnail, else the file itself."""
    thumbnail = output.raw.get("thumbnail") or {}
    data, kind = thumbnail.get("data") or output.data, thumbnail.get("mimetype") or output.mimetype or ""
    return types.ImageContent(data=data, mime_type=kind) if data and kind.startswith("image/") else None


def _reason(error: Exception) -> str:
    problems = error.problems if isinstance(error, RequestRefused) else ()
    lines = [
        f"{problem.field or problem.node_id}: {problem.message}; allowed: {problem.allowed}" for problem in problems
    ]
    return "\n".join([str(error), *(line[:1000] for line in lines[:20])])


def build_server(tools: DrawingTools) -> Server[Any]:
    """Return a server with the tools of a worker, which asks the worker anew each time that they are listed."""

    async def list_tools(
        _context: ServerRequestContext[Any], _params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(tools=await tools.listed())

    async def call_tool(
        context: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        return await tools.call(context, params.name, params.arguments or {})

    return Server(
        "darkroom",
        version=version(),
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


async def serve_stdio(tools: DrawingTools) -> None:
    """Serve the tools on standard input and output until they close."""
    server = build_server(tools)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())

"""A stand-in of the Hugging Face hub for commits: the calls of its own library for small and for large files."""

from __future__ import annotations

import base64
import json
from typing import Any

from aiohttp import web

TOKEN = "hf_planted_token"
LARGE_BYTES = 32
COMMIT = "0" * 40


class StandInHub:
    """Files by repository and path, and how many commits brought them. Files above LARGE_BYTES go to the LFS store."""

    def __init__(self, repo: str) -> None:
        self.repo = repo
        self.url = ""
        self.files: dict[str, bytes] = {}
        self.commits: list[str] = []
        self._objects: dict[str, bytes] = {}

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._with_token])
        app.router.add_post("/api/datasets/{owner}/{name}/preupload/{revision}", self._preupload)
        app.router.add_post("/datasets/{owner}/{name}.git/info/lfs/objects/batch", self._batch)
        app.router.add_put("/lfs/{oid}", self._take)
        app.router.add_post("/api/datasets/{owner}/{name}/commit/{revision}", self._commit)
        return app

    @web.middleware
    async def _with_token(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if request.path.startswith("/lfs/"):  # signed by its address
            answer: web.StreamResponse = await handler(request)
            return answer
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            message = "Invalid credentials in Authorization header"
            return web.json_response({"error": message}, status=401, headers={"X-Error-Message": message})
        if f"{request.match_info['owner']}/{request.match_info['name']}" != self.repo:
            return web.json_response({}, status=404, headers={"X-Error-Code": "RepoNotFound"})
        answer = await handler(request)
        return answer

    async def _preupload(self, request: web.Request) -> web.Response:
        files = (await request.json())["files"]
        return web.json_response(
            {
                "files": [
                    {
                        "path": file["path"],
                        "uploadMode": "lfs" if file["size"] > LARGE_BYTES else "regular",
                        "shouldIgnore": False,
                    }
                    for file in files
                ]
            }
        )

    async def _batch(self, request: web.Request) -> web.Response:
        objects = (await request.json())["objects"]
        found = [
            {**thing, "actions": {"upload": {"href": f"{self.url}/lfs/{thing['oid']}", "header": {}}}}
            for thing in objects
        ]
        return web.json_response({"transfer": "basic", "objects": found})

    async def _take(self, request: web.Request) -> web.Response:
        self._objects[request.match_info["oid"]] = await request.read()
        return web.Response()

    async def _commit(self, request: web.Request) -> web.Response:
        for line in (await request.text()).splitlines():
            item = json.loads(line)
            value = item["value"]
            if item["key"] == "header":
                self.commits.append(value["summary"])
            elif item["key"] == "file":
                self.files[value["path"]] = base64.b64decode(value["content"])
            else:
                self.files[value["path"]] = self._objects[value["oid"]]
        return web.json_response({"commitOid": COMMIT, "commitUrl": f"{self.url}/datasets/{self.repo}/commit/{COMMIT}"})

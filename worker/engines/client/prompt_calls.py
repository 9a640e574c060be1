"""PromptCalls: requests to one engine about prompts: its queue, its history, the submission and the withdrawal."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Collection
from typing import Any

from darkroom.worker.concurrency.off_loop import needs_thread, off_loop
from darkroom.worker.engines import answers
from darkroom.worker.engines.answers import invalid, reading
from darkroom.worker.engines.client.calls import EngineCalls, encoded
from darkroom.worker.engines.continuations import HISTORY_ITEMS, continuations_in
from darkroom.worker.engines.graph_check import FoundProblems, read_problems
from darkroom.worker.engines.hidden_folders import problems_without_folders
from darkroom.worker.engines.http import Reply
from darkroom.worker.engines.model_folders import Kinds, parse_kinds
from darkroom.worker.engines.outcome import RunOutcome, problems_of_rejection, read_outcome
from darkroom.worker.errors import EngineUnreachable, Problem
from darkroom.worker.json.values import JsonObject
from darkroom.worker.observe.tracing import trace_headers

REFUSALS = (400, 413, 422)  # statuses of a prompt or file that is not as it must be; others are the engine's own matter
PROBE = "darkroom-probe"  # id that no prompt has
INVALID_ID = "invalid_prompt_id"  # type of ComfyUI's problem

NAMESPACE = uuid.UUID("6b1f4f0e-6d5c-4f5f-9a0e-0f1d9a7c3b52")
"""Namespace of the ids of prompts at engines that take UUIDs alone."""


class PromptCalls:
    """Requests about prompts, and their answers without the `hidden` folders, which no reply may name."""

    def __init__(self, calls: EngineCalls, hidden: tuple[str, ...]) -> None:
        self._calls = calls
        self._hidden = hidden
        self._takes_any_id = True
        self._sending = asyncio.Lock()

    def id_there(self, prompt_id: str) -> str:
        """Return the id that a prompt of ours has at this engine: the same, or a UUID made of it."""
        return prompt_id if self._takes_any_id else str(uuid.uuid5(NAMESPACE, prompt_id))

    async def learn_id_form(self) -> None:
        """Ask the engine whether it takes ids that are no UUIDs, as ComfyUI did before 0.33.0, by an empty prompt."""
        body = encoded({"prompt": {}, "prompt_id": PROBE})
        with contextlib.suppress(EngineUnreachable):  # the other routes say so
            response = await self._calls.request("POST", "/prompt", body)
            answer = await response.json_object() if response.status in REFUSALS else {}
            with reading(response.route):
                found = problems_of_rejection(answer)
            self._takes_any_id = all(problem.type != INVALID_ID for problem in found)

    async def probe(self) -> None:
        """Ask the routes by which a prompt is followed. Raises EngineUnreachable if their answers cannot be used."""
        await self.queue()
        await self.history_entry(PROBE)

    async def queue(self) -> dict[str, list[list[Any]]]:
        """Return the items of the engine's queue, by whether they run or wait. Raises EngineUnreachable."""
        with self._calls.judging("queue"):
            return answers.read_queue("GET /queue", await self._calls.get("/queue"))

    async def queue_position(self, prompt_id: str) -> str | None:
        """Return the part of the queue that a prompt is in, None for nowhere. Raises EngineUnreachable."""
        for part, items in (await self.queue()).items():
            if any(item[1] == prompt_id for item in items):
                return part
        return None

    async def history_entry(self, prompt_id: str) -> JsonObject | None:
        """Return a prompt's entry in the history, None before its end. Raises EngineUnreachable."""
        with self._calls.judging("history"):
            history = await self._calls.get(f"/history/{prompt_id}")
            return answers.read_entry("GET /history/{prompt_id}", history, prompt_id)

    async def has_prompt(self, prompt_id: str) -> bool:
        """Return True if the prompt waits, runs, or has run to its end there."""
        prompt_id = self.id_there(prompt_id)
        if await self.queue_position(prompt_id) is not None:
            return True
        entry = await self.history_entry(prompt_id)
        return entry is not None and not self.outcome(entry).was_interrupted

    async def queued_for(self, first_ids: Collection[str], seen: Collection[str] = ()) -> list[str]:
        """Return the prompts in the engine that continue one of these."""
        queue = await self.queue()
        with self._calls.judging("history"), reading("GET /history"):
            history = await self._calls.get(f"/history?max_items={HISTORY_ITEMS}") if seen else {}
            return continuations_in(queue, history, first_ids, {*seen, *first_ids})

    def outcome(self, entry: JsonObject) -> RunOutcome:
        """Return the outcome in an entry of the history. Raises EngineAnswerInvalid."""
        with self._calls.judging("history"), reading("GET /history/{prompt_id}"):
            return read_outcome(entry, self._hidden)

    async def find_problems(self, prompt: JsonObject, pending_files: Collection[str]) -> tuple[FoundProblems, Kinds]:
        """Return the problems that our engine's check finds, and the kinds of the models that the prompt names."""
        is_large = needs_thread(prompt)
        body = await off_loop(is_large, encoded, {"prompt": prompt, "pending_files": list(pending_files)})
        with self._calls.judging("check"):
            response = await self._calls.request("POST", "/api/v1/workflow", body)
            if response.status not in (200, *REFUSALS):
                raise EngineUnreachable(f"The engine answered {response.status} to a workflow")
            answer = await response.json_object()
            with reading(response.route):
                if response.status != 200:  # no prompt at all
                    return FoundProblems(tuple(self._refusal(response, answer))), {}
                found = read_problems(answer)
                return found, parse_kinds(answer.get("models")) if found.listed else {}

    async def submit(self, content: bytes, traceparent: str) -> tuple[list[Problem], bool]:
        """Submit a prompt. Return its problems, and True if the engine has taken it, or a part of it, all the same.

        Raises EngineAnswerInvalid, when it may have been taken, and EngineUnreachable.
        """
        with self._calls.judging("prompt"):
            async with self._sending:  # two at once might overtake each other
                response = await self._calls.request("POST", "/prompt", content, headers=trace_headers(traceparent))
            if response.status not in (200, *REFUSALS):
                raise invalid(response.route, f"status {response.status}")
            answer = await response.json_object()
            if response.status != 200:
                return self._refusal(response, answer), False
            if not isinstance(answer.get("prompt_id"), str):
                raise invalid(response.route, "expected an object with `prompt_id`")
            with reading(response.route):
                return self.without_folders(problems_of_rejection(answer)), True

    def without_folders(self, problems: Collection[Problem]) -> list[Problem]:
        """Return problems without the paths of an engine of ours."""
        return problems_without_folders(problems, self._hidden)

    def _refusal(self, response: Reply, answer: JsonObject) -> list[Problem]:
        """Return the problems of a prompt that was refused. Raises EngineAnswerInvalid for a refusal without any."""
        with reading(response.route):
            problems = self.without_folders(problems_of_rejection(answer))
        if not problems:
            raise invalid(response.route, f"status {response.status} without `error` or `node_errors`")
        return problems

    async def delete(self, prompt_id: str) -> None:
        """Take a prompt out of the queue; one that has begun stays. Raises EngineUnreachable."""
        await self._calls.post("/queue", {"delete": [prompt_id]})

    async def withdraw(self, prompt_id: str) -> None:
        """Take a prompt out of the queue, or interrupt it when it runs. No other prompt is touched."""
        with contextlib.suppress(EngineUnreachable):
            await self.delete(prompt_id)
            await self._calls.post("/interrupt", {"prompt_id": prompt_id})

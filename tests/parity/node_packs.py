"""Compare packs of custom nodes on two running servers: the nodes that each lists, and what workflows return.

    python -m tests.parity.node_packs --url URL --reference URL [WORKFLOW.json …]

Both servers have the same packs, models and inputs. A workflow that fails on both with the same message is alike.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.parity.outputs import Tolerance, compare_outputs
from tests.parity.server import ComfyServer, RunFailed

START_SECONDS = 300.0
RUN_SECONDS = 300.0
PACK = "custom_nodes."


def nodes_by_pack(object_info: Mapping[str, Any]) -> dict[str, set[str]]:
    """Return the node names of each pack that a server lists."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, node in object_info.items():
        if node["python_module"].startswith(PACK):
            found[node["python_module"].removeprefix(PACK)].add(name)
    return dict(found)


def pack_rows(ours: Mapping[str, set[str]], reference: Mapping[str, set[str]]) -> list[str]:
    """Return a Markdown table row a pack: how many nodes each server has, and those that ours lacks."""
    return [
        f"| {pack} | {len(ours.get(pack, ()))} | {len(reference.get(pack, ()))} | "
        f"{', '.join(sorted(reference.get(pack, set()) - ours.get(pack, set()))) or 'none'} |"
        for pack in sorted({*ours, *reference})
    ]


def compare_workflow(prompt: dict[str, Any], server: ComfyServer, reference: ComfyServer) -> tuple[str, bool]:
    """Run a workflow on both; return what was measured, and True if both did the same."""
    (expected, wanted_error), (found, error) = (_outcome(each, prompt) for each in (reference, server))
    if wanted_error or error:
        return f"here: {error or 'runs'}; there: {wanted_error or 'runs'}", error == wanted_error
    compared = compare_outputs(expected, found, Tolerance())
    return "; ".join(item.problem or item.measured for item in compared), not any(item.problem for item in compared)


def _outcome(server: ComfyServer, prompt: dict[str, Any]) -> tuple[dict[str, bytes], str]:
    try:
        return server.run(prompt, RUN_SECONDS), ""
    except RunFailed as error:
        return {}, str(error)


def main() -> int:
    """Print both tables; return 1 if a workflow differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--reference", required=True)
    parser.add_argument("workflows", nargs="*", type=Path)
    given = parser.parse_args()
    server, reference = ComfyServer(given.url), ComfyServer(given.reference)
    for each in (server, reference):
        each.wait_until_up(START_SECONDS)
    rows = pack_rows(nodes_by_pack(server.object_info()), nodes_by_pack(reference.object_info()))
    print("\n".join(["| Pack | Nodes here | There | Lacking here |", "| --- | --- | --- | --- |", *rows]))
    are_alike = True
    for workflow in given.workflows:
        measured, is_alike = compare_workflow(json.loads(workflow.read_text("utf-8")), server, reference)
        are_alike = are_alike and is_alike
        print(f"{'same' if is_alike else 'DIFFERENT'} {workflow.stem}: {measured}", flush=True)
    return 0 if are_alike else 1


if __name__ == "__main__":
    sys.exit(main())

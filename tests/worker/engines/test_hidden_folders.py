"""Messages name files without the server's folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from darkroom.worker.engines.hidden_folders import prefixes_of, problems_without_folders, without_folders
from darkroom.worker.errors import Problem

PREFIXES = prefixes_of([Path("/srv/base/input"), Path("/srv/base/output"), Path("/fast/temp"), Path("/pictures")])


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("no file '/srv/base/input/a.png'", "no file 'input/a.png'"),
        ("/srv/base/models/vae/x: bad", "models/vae/x: bad"),
        ("/pictures/a.png", "a.png"),
        ("/fast/temp/b", "temp/b"),
        ("/mnt/srv/base/input/a", "/mnt/srv/base/input/a"),
        ("a / b", "a / b"),
    ],
)
def test_a_folder_of_the_server_is_left_out(said: str, shown: str) -> None:
    assert without_folders(said, PREFIXES) == shown
    [problem] = problems_without_folders([Problem(said, node_id="1")], PREFIXES)
    assert (problem.message, problem.node_id) == (shown, "1")

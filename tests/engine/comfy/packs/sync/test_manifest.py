"""packs.toml: every problem is named with what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from darkroom.engine.comfy.packs.sync.errors import PacksInvalid
from darkroom.engine.comfy.packs.sync.manifest import PackEntry, manifest_path, read_packs
from tests.engine.comfy.packs.sync.sources import write_manifest


def test_packs_are_read_in_order(tmp_path: Path) -> None:
    write_manifest(
        tmp_path,
        '[b]\nurl = "https://user:secret@example.com/b"\nrevision = "v1.0"\n'
        '[a]\nregistry = "a-pack"\nskip_requirements = ["OpenCV_python"]\n',
    )
    packs = read_packs(manifest_path(tmp_path))
    assert packs[0] == PackEntry("b", url="https://user:secret@example.com/b", revision="v1.0")
    assert packs[0].shown == "https://example.com/b@v1.0"
    assert packs[1] == PackEntry("a", registry="a-pack", skip_requirements=("opencv-python",))
    assert packs[1].shown == "registry:a-pack"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[a]\n", "[a] url: expected either url"),
        ('[a]\nurl = "https://h/a"\nregistry = "a"\n', "[a] url: expected either url"),
        ('[a]\nurl = "ext::sh -c id"\n', "[a] url: is not valid, expected https://"),
        ('[a]\nurl = "ftp://h/a"\n', "expected https://host/owner/repository"),
        ('[a]\nurl = "https://h/a"\nrevision = "--upload-pack=id"\n', "[a] revision: is not valid"),
        ('["../a"]\nurl = "https://h/a"\n', "is not a folder below custom_nodes/"),
        ('[".a"]\nurl = "https://h/a"\n', "is not a folder below custom_nodes/"),
        ('[a]\nurl = "https://h/a"\nsha256 = "12"\n', "64 hexadecimal digits"),
        ('[a]\nurl = "https://h/a"\nbranch = "x"\n', "branch: unknown field; expected one of url, registry"),
        ("a = 1\n", "[a] is no table"),
        ("[a", "is not TOML"),
        ('[a]\nurl = "https://h/a"\n[A]\nurl = "https://h/a"\n', "differs from [a] in capitals alone"),
        ('[a]\nregistry = "a"\nskip_requirements = "x"\n', "expected a list of names"),
        (
            '[a]\nregistry = "a"\nrun_install = "yes"\n',
            "[a] run_install: is not valid; got 'yes', expected true or false",
        ),
    ],
)
def test_a_wrong_manifest_is_refused_with_what_is_allowed(tmp_path: Path, text: str, message: str) -> None:
    write_manifest(tmp_path, text)
    with pytest.raises(PacksInvalid) as raised:
        read_packs(manifest_path(tmp_path))
    assert message in str(raised.value)


def test_every_problem_is_named_and_no_password(tmp_path: Path) -> None:
    write_manifest(tmp_path, '[a]\nurl = "https://me:secret@h/ a"\nwrong = 1\n[b]\n')
    with pytest.raises(PacksInvalid) as raised:
        read_packs(manifest_path(tmp_path))
    assert all(part in str(raised.value) for part in ("[a] url", "[a] wrong", "[b] url"))
    assert "secret" not in str(raised.value)

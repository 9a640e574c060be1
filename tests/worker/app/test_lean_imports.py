"""Optional libraries of libraries are not imported where the front has no use for them."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from darkroom.worker.app.lean_imports import UNUSED_LIBRARIES, lean_imports, without_libraries

ABSENT = "xml.dom.pulldom"  # a module of the standard library that nothing here uses
PROGRAM = """
import sys
from darkroom.worker.app.lean_imports import lean_imports
with lean_imports():
    import darkroom.worker.app.serve, darkroom.worker.app.assembly, darkroom.worker.app.application
print(*sys.modules)
"""


def test_a_library_is_absent_in_the_block_and_there_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, ABSENT, raising=False)
    with without_libraries(ABSENT, "json"):
        with pytest.raises(ImportError):
            __import__(ABSENT)
        assert __import__("json") is sys.modules["json"]  # imported before, by whoever uses it
    __import__(ABSENT)
    assert sys.modules[ABSENT] is not None


def test_the_front_needs_none_of_them() -> None:
    found = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout.split()
    assert "darkroom.worker.app.application" in found and not {*UNUSED_LIBRARIES, "yaml"} & set(found)


@pytest.mark.parametrize("before", [True, False])
def test_nothing_is_collected_in_the_block_and_after_it_as_before(before: bool) -> None:
    try:
        if not before:
            gc.disable()
        with pytest.raises(ImportError), lean_imports():
            assert not gc.isenabled()
            raise ImportError
        assert gc.isenabled() == before
    finally:
        gc.enable()

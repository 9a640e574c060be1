"""Names of a model file whose download is under way, as the front writes it and an engine reads it.

The part `models/.downloads/KIND/NAME.part` has the file's full size from the start. The journal beside it begins with a
line of JSON (`size_bytes`, `block_bytes`); each further line is the number of a block that is there, and the last one
says that the content has been checked.
"""

from __future__ import annotations

DOWNLOADS = ".downloads"
"""Folder below `models/` with the parts of downloads."""

PART_ENDING = ".part"
JOURNAL_ENDING = ".blocks"
CHECKED = b"checked"
"""Line of a journal: size, hash and structure of the part are right, and it is about to get its name."""

"""Names of the exchange of tiles between the engines of one worker."""

from __future__ import annotations

from typing import Final

SHARED_TILES_FOLDER: Final = ".shared_tiles"
"""Folder within the output folder, which the engines share; it has a folder for each upscale."""

SHARED_UPSCALE: Final = "DarkroomSharedUpscale"
UPSCALE_HELP: Final = "DarkroomUpscaleHelp"

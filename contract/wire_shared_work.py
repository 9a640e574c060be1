"""Names of the work that engines of one worker share for one prompt."""

from __future__ import annotations

from typing import Final

SHARED_WORK_FOLDER: Final = ".shared_work"
"""Folder within the output folder, which the engines share; it has a folder for each prompt."""

SHARED_UPSCALE: Final = "DarkroomSharedUpscale"
UPSCALE_HELP: Final = "DarkroomUpscaleHelp"
SHARED_GUIDANCE: Final = "DarkroomSharedGuidance"
GUIDANCE_HELP: Final = "DarkroomGuidanceHelp"

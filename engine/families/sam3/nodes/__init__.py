"""Node classes of SAM 3."""

from darkroom.engine.families.sam3.nodes.detection import sam3_detect
from darkroom.engine.families.sam3.nodes.track_preview import sam3_track_preview
from darkroom.engine.families.sam3.nodes.tracks import sam3_track_to_mask, sam3_video_track

NODES = (sam3_detect, sam3_video_track, sam3_track_preview, sam3_track_to_mask)

"""SAM 3 and SAM 3.1: what a text, a point or a box describes, as masks; 3.1 follows it through videos."""

from __future__ import annotations

from darkroom.engine.families.base import Network
from darkroom.engine.families.sam3.detector import DetectorConfig
from darkroom.engine.families.sam3.image_encoder import ImageEncoderConfig
from darkroom.engine.families.sam3.mask_decoder import MaskDecoderConfig
from darkroom.engine.families.sam3.network import Sam3, Sam3Config
from darkroom.engine.families.sam3.network_files import sam3_config, sam3_names, sam3_variant
from darkroom.engine.families.sam3.text import SAM3_CLIP
from darkroom.engine.families.sam3.tracker import TrackerConfig
from darkroom.engine.families.vision_family import VisionFamily
from darkroom.engine.settings import DtypePolicy

SMALL_DECODER = MaskDecoderConfig(64, 128)
SMALL = Sam3Config(
    image=ImageEncoderConfig(64, 128, 8, image_px=336),
    detector=DetectorConfig(64, 128, 1, 2, 20, 1, 128, 128, text_size=64),
    decoder=SMALL_DECODER,
    tracker=TrackerConfig(SMALL_DECODER, memory_intermediate_size=128, memory_layers=1),
)

FAMILY = VisionFamily(
    name="sam3",
    label="SAM 3",
    detect=sam3_names,
    variant_of=sam3_variant,
    network=Network(
        layouts=(sam3_names,),
        in_checkpoint=(sam3_names,),
        configure=sam3_config,
        build=Sam3,
        dtypes=DtypePolicy(prefers=("float16", "bfloat16")),
        sizes={"full": Sam3Config(), "small": SMALL},
    ),
    text=(SAM3_CLIP,),
)

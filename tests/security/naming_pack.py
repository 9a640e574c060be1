"""A pack of custom nodes that bring names of files by links, and load or save under them."""

from __future__ import annotations

PACK = '''
"""Nodes that bring file names by links."""

import os

import folder_paths
import numpy
from PIL import Image


class BringName:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"first": ("STRING", {"multiline": True}), "second": ("STRING", {"multiline": True})}}

    RETURN_TYPES, FUNCTION, CATEGORY = ("*",), "bring", "test"

    def bring(self, first, second):
        return (first + second,)


class SaveAndName:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"images": ("IMAGE",)}}

    RETURN_TYPES, FUNCTION, CATEGORY, OUTPUT_NODE = ("*",), "save", "test", True

    def save(self, images):
        output = folder_paths.get_output_directory()
        folder, name, number, subfolder, _ = folder_paths.get_save_image_path("of a pack", output)
        filename = f"{name}_{number:05}_.png"
        Image.fromarray((images[0].numpy() * 255).astype(numpy.uint8)).save(os.path.join(folder, filename))
        shown = {"filename": filename, "subfolder": subfolder, "type": "output"}
        return {"ui": {"images": [shown]}, "result": (f"{filename} [output]",)}


class LoadNamed:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"name": ("*",)}}

    RETURN_TYPES, FUNCTION, CATEGORY = ("IMAGE",), "load", "test"

    def load(self, name):
        import torch

        image = Image.open(folder_paths.get_annotated_filepath(name)).convert("RGB")
        return (torch.from_numpy(numpy.asarray(image).astype(numpy.float32) / 255)[None],)


NODE_CLASS_MAPPINGS = {"BringName": BringName, "SaveAndName": SaveAndName, "LoadNamed": LoadNamed}
'''

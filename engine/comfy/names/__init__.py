"""The modules that custom nodes import, under the names below this folder. `engine/comfy/finder.py` serves them."""

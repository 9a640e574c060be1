"""The modules that custom nodes import, under the names below this folder. `engine/compat/finder.py` serves them."""

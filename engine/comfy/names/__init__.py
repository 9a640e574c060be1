"""The modules that custom nodes import, under the names below this folder. `compat/finder.py` serves them."""

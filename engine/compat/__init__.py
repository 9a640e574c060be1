"""Answers to the import names of ComfyUI that custom nodes use, over this engine.

Nothing here is imported, and no import name is taken, until custom nodes are loaded (`engine/nodes/custom.py`).
"""

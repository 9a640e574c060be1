"""ComfyUI's import names for custom nodes, implemented over this engine.

Nothing here is imported, and no import name is taken, until custom nodes are loaded (`engine/comfy/packs/loader.py`).
"""

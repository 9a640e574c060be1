"""`comfy.ldm.flux`."""

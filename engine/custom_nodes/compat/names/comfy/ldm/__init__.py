"""`comfy.ldm`: networks."""

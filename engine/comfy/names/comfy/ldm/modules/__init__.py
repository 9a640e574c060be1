"""`comfy.ldm.modules`: parts of networks."""

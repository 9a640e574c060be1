"""`comfy.ldm.wan`."""

"""`comfy.ldm.modules.diffusionmodules`."""

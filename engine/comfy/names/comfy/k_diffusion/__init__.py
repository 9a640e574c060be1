"""`comfy.k_diffusion`: samplers as functions."""

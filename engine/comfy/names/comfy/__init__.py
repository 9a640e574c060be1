"""`comfy`: models, sampling and memory, as custom nodes reach them."""

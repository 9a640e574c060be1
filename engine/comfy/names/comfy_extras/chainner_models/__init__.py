"""`comfy_extras.chainner_models`: the older way to upscaling networks."""

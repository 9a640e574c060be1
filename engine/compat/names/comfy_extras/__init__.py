"""`comfy_extras`: what packs take from the files of built-in nodes besides the nodes themselves."""

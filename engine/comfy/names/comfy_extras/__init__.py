"""`comfy_extras`: functions and classes that packs import from the files of built-in nodes, besides the nodes."""

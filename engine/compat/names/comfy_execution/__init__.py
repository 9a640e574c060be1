"""`comfy_execution`: graphs, as nodes that expand see them."""

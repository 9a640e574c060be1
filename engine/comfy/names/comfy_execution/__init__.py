"""`comfy_execution`: graphs, for nodes that expand."""

"""`comfy_api`: ComfyUI's versioned interface for custom nodes."""

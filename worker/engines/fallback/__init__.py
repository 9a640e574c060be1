"""The fallback: a ComfyUI, started on demand, for workflows that our engine cannot run."""

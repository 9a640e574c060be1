"""Snapshots: a directory from which Darkroom, its packs and its models are installed without a network."""

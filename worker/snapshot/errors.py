"""SnapshotFailed: the error of `darkroom build`."""

from __future__ import annotations


class SnapshotFailed(Exception):
    """Error for a snapshot that cannot be written, with what to do. Nothing is left behind."""

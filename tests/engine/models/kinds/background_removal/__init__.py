"""Networks that remove backgrounds."""

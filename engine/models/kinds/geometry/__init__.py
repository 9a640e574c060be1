"""Networks that estimate the geometry of what images show."""

"""Networks that interpolate frames."""

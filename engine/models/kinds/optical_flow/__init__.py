"""Networks that estimate how pixels move from one frame to another."""

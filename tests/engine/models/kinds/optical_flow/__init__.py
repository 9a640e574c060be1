"""Networks that estimate optical flow."""

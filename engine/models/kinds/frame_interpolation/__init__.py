"""Networks that compute the frames between two frames of a video."""

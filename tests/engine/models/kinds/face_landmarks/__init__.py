"""MediaPipe's networks of faces."""

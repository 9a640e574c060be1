"""MediaPipe's networks of faces: detection, landmarks and expressions."""

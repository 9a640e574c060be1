"""`comfy.text_encoders`."""

"""Networks that tell the foreground of an image from its background."""

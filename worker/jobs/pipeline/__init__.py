"""The way of a job: fetch, generate, deliver, end; each stage with its own state."""

"""One engine as the front uses it: its requests, its socket, the prompts in flight there, and its files."""

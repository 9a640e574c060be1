"""Names as people write them. Standard library only; every package may import it."""

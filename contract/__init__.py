"""Agreement of front and engine: graphs, names of the wire, qualities, costs. Standard library only."""

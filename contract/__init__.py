"""What front and engine agree on: graphs, names of the wire, qualities, costs. Standard library only."""

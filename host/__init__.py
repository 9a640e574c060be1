"""The machine around a process, read from the kernel's files. Standard library only; every package may import it."""

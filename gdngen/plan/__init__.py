"""`Kernel` -> `Planned`: the order of statements, the slots tiles share, and the bytes that comes to."""

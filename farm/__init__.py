"""The compile farm: turns graphs that no cache has into artifacts, each distinct one once."""

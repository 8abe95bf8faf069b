"""Which variant of a GPU kernel is the fastest on the GPU at hand: measured, and kept."""

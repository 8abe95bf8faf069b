"""Code generation: kernel loops become source for a target."""

"""Measurements of fusec beside eager and Inductor: `python -m bench.cpu --help` and so on."""

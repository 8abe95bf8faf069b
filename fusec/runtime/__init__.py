"""The runtime: artifacts become callables. Needs torch, but no compiler."""

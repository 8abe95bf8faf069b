"""The demo: one model compiled cold through a farm, then warm in another process, and checked."""

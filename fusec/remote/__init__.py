"""The client's way to an artifact: local store, cache service, farm, and a compile here at last."""

"""Whether an artifact computes what eager does: on random inputs, before it is published."""

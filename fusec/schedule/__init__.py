"""Scheduling: which computations share a kernel, in what order, in which memory."""

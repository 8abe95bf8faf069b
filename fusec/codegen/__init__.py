"""From scheduled groups to kernel source: C for the CPU, and the compiler that builds it."""

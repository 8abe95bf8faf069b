"""Lowering: a Graph of ATen operations becomes a LoopProgram, by tables of rules."""

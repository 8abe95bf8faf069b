"""Attention as one operation: the operators, what computes them, and how calls become them."""

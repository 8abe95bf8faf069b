"""The compiler's intermediate representations: integer expressions, graphs and loop programs."""

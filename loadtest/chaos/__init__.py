"""Workers, nodes and gateways that are killed under load, and what must hold all the same."""

"""Load on a real service and farm, and what must hold under it; not part of the wheel."""

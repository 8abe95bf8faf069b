"""Load on a real service and farm, and simulated past one machine; not part of the wheel."""

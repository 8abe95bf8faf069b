"""What the farm's work costs on a machine: measured by `python -m loadtest.costs`."""

"""Child processes that work for this one and may be lost."""

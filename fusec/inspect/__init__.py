"""What a compiled graph did: counts, and for each kernel its operations and their reasons."""

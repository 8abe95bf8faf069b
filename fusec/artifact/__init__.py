"""What is stored and how it is named: fingerprints, compile jobs, front bundles."""

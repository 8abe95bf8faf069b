"""The artifact cache: content-addressed blobs, entries that name them, stores, a service, a client.

This package knows bytes, not kernels: it imports neither torch nor ray nor fusec. Importing it is
cheap; the servers and boto3 load only with the modules that need them.
"""

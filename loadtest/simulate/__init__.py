"""The real farm in simulated time: thousands of ranks and workers in one process.

Run by `python -m loadtest.simulate`. What is real: the gateway's application with all that is
behind it (admission, queue, fair share, single flight, retries, leases, publishing), the worker's
entrance, and the client's waiting (`fusec.remote.farm`). What is simulated: time, the processors,
the network, the store's latency, and what a compiler makes.
"""

"""The HTTP API, the dashboard and /metrics: a process of its own that knows only storage.

It works with every worker down: what concerns a pod (quiet, stop, stacks) travels through the database.
"""

"""The operators' routes, ``/admin/v1``: tasks, processes, counters and keys. Each wants an admin key."""

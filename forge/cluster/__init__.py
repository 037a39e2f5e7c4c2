"""What pods do for the cluster beside running jobs: services, and the lease that says which pod leads.

Knows the storage and the settings; nothing of the processes, the workers or the commands that use it.
"""

"""The master: the pod's only database client. It claims, dispatches, finalizes and beats; it imports no user code and
never forks."""

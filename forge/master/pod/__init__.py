"""The pod among others: in its cluster, on its host, and to whoever runs it.

`presence.py` registers the pod and beats for it; `identity.py` is its name. `fencing.py` ends what runs when no beat
was confirmed for too long. `pod_services.py` is what the pod does for the whole cluster. `meter.py` counts and reports,
and `process_use.py` is the CPU and memory of the pod's processes. `systemd.py`, `pid_file.py` and `log.py` are for
whoever runs it on this host.
"""

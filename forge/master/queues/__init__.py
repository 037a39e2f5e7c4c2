"""What this pod claims, and for whom.

`local_queues.py` has all queues of the pod and `local_queue.py` one of them: how many jobs it wants, and which worker
gets the next. `waiting_jobs.py` are its claimed jobs that no worker has yet. How many it wants comes from `job_pace.py`
(how long jobs take), `long_kinds.py` (which kinds take long) and `worker_count.py` (how many workers are worth having).

`claimer.py` claims. `chains.py` are claimed jobs that must run one after the other. `offers.py` has jobs sent to an
idle pod before it asks. `wake_switch.py` tells producers not to notify a pod that is busy anyway. `pod_share.py` is the
pod's part of a queue's workers, and `pod_budgets.py` its part of a budget's tokens.
"""

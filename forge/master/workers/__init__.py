"""Worker processes, and the zygote that they are forked from.

`workers.py` makes, watches and replaces them. `slot.py` is room for one of them: its process, and the jobs it has in
hand. `replies.py` reads what a worker says about jobs, `requests.py` answers what it asks for, `outputs.py` logs what
it writes to stdout and stderr past Python. `stop_job.py` makes a running job stop. `suspects.py` decides which job is
to blame when a process has died.

`zygote_process.py` is the master's side of one zygote, `zygotes.py` those of a pod: the current one, one that is to
replace it, and old ones whose last workers have yet to end.
"""

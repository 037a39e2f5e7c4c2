"""The master: the process of a pod that claims jobs, gives them to workers and writes how they ended. It alone talks to
the database, imports no user code and never forks: that is for the zygote, a process of its own
(`forge.worker.zygote`).

One job's way through the folders, with the function to begin reading at:

1. Woken. `database_threads.py` has the threads that wait for the database so that the loop does not. The listener's
   thread, `ListenerThread.run`, hears that jobs are there and posts news (`news.py`) to the loop. The loop is one
   thread: `Master._until` in `loop.py`, which takes news in by `Master._take_in`.
2. Claimed. `queues/` has what this pod claims and for whom. `LocalQueue.wanted` in `queues/local_queue.py` says how
   many jobs a queue has room for; `Claimer.claim` in `queues/claimer.py` has a thread fetch as many. An idle pod leaves
   an offer in the database instead, and is sent a job as it is stored: `Offers.look` in `queues/offers.py`.
3. Dispatched. `LocalQueue.dispatch` gives jobs to the workers with the fewest; `Slot.send` in `workers/slot.py` hands
   them over. Jobs for pools and commands are for `programs/`: `Programs.take` in `programs/programs.py` keeps them.
4. Run. `workers/` has the processes. `Workers.tick` in `workers/workers.py` fills empty slots: `ZygoteProcess.fork` in
   `workers/zygote_process.py` asks the zygote for a worker, which runs the handler (`forge.worker`).
5. Reply read. `Replies.hear` in `workers/replies.py` reads what a worker says. Nothing is believed before
   `message_checks.py` has looked at it. Done jobs without a result, the usual ones, are read in bulk by `Slot.receive`.
6. Finalized. `Finalizer.end` in `finalizer.py` takes the ending and `Finalizer.flush` has a thread write what has
   gathered. `EndingBatch.__call__` in `ending_batch.py` writes a batch, and divides it where the database refuses some.
7. Stopped, if it must be: past its timeout, cancelled, or because the pod stops. `press` in `workers/stop_job.py` asks
   the worker, then interrupts the handler, then has the worker killed.

Around it: `pod/` is the pod among others: its heartbeat, its name, systemd, its log and figures. `pod_state.py` has
what the parts of the loop share, and only the loop's thread changes it. `books.py` counts claims in and endings out,
and finds a claim that got lost. When a worker dies, `Workers.tick` sees to its jobs; who is to blame is for
`workers/suspects.py`.

A part is given what it needs by its constructor, and `Master.__init__` in `loop.py` is the one place where all parts
are made.
"""

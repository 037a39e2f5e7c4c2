"""What an app has for the processes that run its jobs: the context of a job, its transaction, results and middleware.

None of it is needed to enqueue, but for the hooks before an enqueue.
"""

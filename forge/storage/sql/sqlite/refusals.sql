-- What an ending writes, to be undone: whether the file takes any.
-- name: try_history
insert into forge_job_history (id, run_at, enqueued_at, finished_at, timeout, status, priority, attempts, max_attempts,
                               crashes, queue, kind, payload, result)
values (randomblob(16), 0, 0, 0, 0, 'done', 0, 0, 0, 0, '', '', 'null', :result)

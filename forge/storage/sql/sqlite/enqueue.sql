-- Storing jobs. These run on connections of the caller's too, so each starts with the word INSERT or UPDATE: that is
-- how Python's sqlite3 knows to begin a transaction, and a transaction that starts by writing has the newest state,
-- while one that starts by reading may be refused its first write (SQLITE_BUSY_SNAPSHOT).
-- An id that is known, live or ended, is left as it is.
-- name: insert_job
insert into forge_job (id, queue, kind, payload, priority, run_at, enqueued_at, max_attempts, timeout, dedupe_key,
                       unique_for, keep_result, tags)
select :id, :queue, :kind, :payload, :priority, :run_at, :now, :max_attempts, :timeout, :dedupe_key, :unique_for,
       :keep_result, :tags
 where not exists (select 1 from forge_job_history where id = :id)
on conflict (id) do nothing

-- The same for one in a line, whose queue is marked as having lines.
-- name: insert_lined_job
insert into forge_job (id, queue, kind, payload, priority, run_at, enqueued_at, max_attempts, timeout, dedupe_key,
                       unique_for, keep_result, tags, line, rate_limit, concurrency_key, concurrency)
select :id, :queue, :kind, :payload, :priority, :run_at, :now, :max_attempts, :timeout, :dedupe_key, :unique_for,
       :keep_result, :tags, :line, :rate_limit, :concurrency_key, :concurrency
 where not exists (select 1 from forge_job_history where id = :id)
on conflict (id) do nothing

-- name: mark_lines
insert into forge_line_queue (queue) values (:queue) on conflict do nothing

-- Answers a row if the key was won: it was free, or kept for a job that ended long enough ago.
-- name: take_key
insert into forge_job_key (key, job_id)
select :key, :id where not exists (select 1 from forge_job where id = :id)
       and not exists (select 1 from forge_job_history where id = :id)
on conflict (key) do update set job_id = excluded.job_id, held_until = null where held_until <= :now
returning job_id

-- Why it was not won: the id is known, or another job has the key.
-- name: key_owner
select exists (select 1 from forge_job where id = :id) or exists (select 1 from forge_job_history where id = :id),
       (select job_id from forge_job_key where key = :key)

-- A taken key with on_conflict: change the job that has it, if it has not started.
-- name: replace_payload
update forge_job set payload = :payload where id = :id and status in ('pending', 'failed')

-- name: push_run_at
update forge_job set run_at = :run_at where id = :id and status = 'pending'

-- part: job_columns
id, queue, kind, status, payload, priority, attempts, max_attempts, crashes, timeout, run_at, enqueued_at, claimed_at,
dedupe_key, unique_for, keep_result, tags, errors, cancel_requested_at, claim >> 32, line, rate_limit, concurrency_key,
concurrency

-- part: filter
id < :before
   and (:statuses is null or status in (select value from json_each(:statuses)))
   and (:queues is null or queue in (select value from json_each(:queues)))
   and (:kinds is null or kind in (select value from json_each(:kinds)))
   and (:tag is null or exists (select 1 from json_each(tags) where value = :tag))

-- part: queue_columns
name, max_workers, paused, backoff_enabled, backoff_base_seconds, backoff_max_seconds, throttle, retain_done_days,
retain_dead_days, throttle_attempts, throttled_until

-- name: set_wake
update forge_queue set wake = :wake where name = :queue and wake <> :wake

-- name: request_cancel
update forge_job set cancel_requested_at = coalesce(cancel_requested_at, :now) where id = :id

-- name: live_job
select status, attempts, crashes, errors, dedupe_key from forge_job where id = :id

-- name: ended_job
select dedupe_key from forge_job_history where id = :id

-- name: drop_key
delete from forge_job_key where key = :key and job_id = :id

-- name: remove_ended
delete from forge_job_history where id = :id

-- Back to life: an ended job takes its key back, unless another has it, and returns to pending.
-- name: retake_key
insert into forge_job_key (key, job_id) values (:key, :id)
on conflict (key) do update set job_id = excluded.job_id, held_until = null
   where held_until is not null and (held_until <= :now or job_id = excluded.job_id)

-- name: revive_job
insert into forge_job (id, run_at, enqueued_at, timeout, unique_for, keep_result, priority, attempts, max_attempts,
                       crashes, queue,
                 kind, payload, dedupe_key, tags, errors, line, rate_limit, concurrency_key, concurrency)
select id, :now, enqueued_at, timeout, unique_for, keep_result, priority, iif(:reset, 0, attempts), max_attempts,
       iif(:reset, 0, crashes), queue, kind, payload, dedupe_key, tags, errors, line, rate_limit, concurrency_key,
       concurrency
  from forge_job_history where id = :id

-- name: hurry
update forge_job set run_at = min(run_at, :now), status = 'pending', attempts = iif(:reset, 0, attempts),
               crashes = iif(:reset, 0, crashes)
 where id = :id and status in ('pending', 'failed')

-- name: get_live
select {job_columns}, null, null, progress from forge_job where id = :id

-- name: get_ended
select {job_columns}, finished_at, result, null from forge_job_history where id = :id

-- Listings: newest first by id, an order that no later change disturbs. A null filter matches all.
-- name: list_live
select {job_columns}, null, null, progress from forge_job where {filter} order by id desc limit :limit

-- name: list_ended
select {job_columns}, finished_at, result, null from forge_job_history where {filter} order by id desc limit :limit

-- The same through the small index of the few that people look for.
-- name: list_unhappy
select {job_columns}, finished_at, result, null from forge_job_history indexed by forge_job_history_unhappy
 where status in ('dead', 'cancelled') and {filter} order by id desc limit :limit

-- name: counts
select queue,
       count(*) filter (where status = 'pending' and run_at <= :now),
       count(*) filter (where status = 'pending' and run_at > :now),
       count(*) filter (where status = 'in_progress'),
       count(*) filter (where status = 'failed'),
       coalesce(:now - min(run_at) filter (where status in ('pending', 'failed') and run_at <= :now), 0) / 1e6
  from forge_job group by queue

-- name: ended_counts
select queue, status, count(*) from forge_job_history group by queue, status

-- name: queues
select {queue_columns} from forge_queue order by name

-- name: set_queue
insert into forge_queue (name, max_workers, paused, backoff_enabled, backoff_base_seconds, backoff_max_seconds,
                         throttle, retain_done_days, retain_dead_days)
values (:name, coalesce(:max_workers, 1), coalesce(:paused, 0), coalesce(:backoff_enabled, 0),
        coalesce(:backoff_base_seconds, 60), coalesce(:backoff_max_seconds, 1800), coalesce(:throttle, 'queue'),
        coalesce(:retain_done_days, 7), coalesce(:retain_dead_days, 30))
on conflict (name) do update set
    max_workers = coalesce(:max_workers, max_workers), paused = coalesce(:paused, paused),
    backoff_enabled = coalesce(:backoff_enabled, backoff_enabled),
    backoff_base_seconds = coalesce(:backoff_base_seconds, backoff_base_seconds),
    backoff_max_seconds = coalesce(:backoff_max_seconds, backoff_max_seconds),
    throttle = coalesce(:throttle, throttle),
    retain_done_days = coalesce(:retain_done_days, retain_done_days),
    retain_dead_days = coalesce(:retain_dead_days, retain_dead_days)
returning {queue_columns}

-- One small batch of what retention no longer keeps, oldest first. The walk starts behind the last batch's last row, so
-- that rows kept longer are not read again and again.
-- name: prune_walk
select h.rowid, h.finished_at, h.finished_at < :now - 86400000000 * case h.status
           when 'done' then coalesce(q.retain_done_days, 7) else coalesce(q.retain_dead_days, 30) end
  from forge_job_history h indexed by forge_job_history_finished left join forge_queue q on q.name = h.queue
 where (h.finished_at, h.rowid) > (:after_at, :after_row) and h.finished_at < :now - :least
 order by h.finished_at, h.rowid limit :n

-- name: prune_row
delete from forge_job_history where rowid = :row

-- name: shortest_retention
select cast(86400000000 * min(7, 30, coalesce(min(min(retain_done_days, retain_dead_days)), 7)) as integer)
  from forge_queue

-- name: prune_keys
delete from forge_job_key where key in (select key from forge_job_key where held_until <= :now limit :n)

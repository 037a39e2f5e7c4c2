-- part: job_columns
id, queue, kind, status::text, payload, priority, attempts, max_attempts, crashes, timeout, run_at, enqueued_at,
claimed_at, dedupe_key, unique_for, keep_result, tags, errors::json, cancel_requested_at, claim >> 32, line, rate_limit,
concurrency_key, concurrency, now()

-- part: filter
id < :before::uuid
   and (:statuses::text[] is null or status::text = any(:statuses::text[]))
   and (:queues::text[] is null or queue = any(:queues::text[]))
   and (:kinds::text[] is null or kind = any(:kinds::text[]))
   and (:tag::text is null or tags @> array[:tag::text])

-- name: set_wake
update forge.queue set wake = :wake::boolean where name = :queue and wake <> :wake::boolean

-- Cancel: what has not started ends now, what runs is flagged for its owner. Answers what was done to each.
-- name: cancel
with hit as materialized (
    select id, status from forge.job where id = any(:ids::uuid[]) order by id for update
), flagged as (
    update forge.job j set cancel_requested_at = coalesce(j.cancel_requested_at, now())
      from hit where j.id = hit.id and j.id = any(:ids::uuid[]) and hit.status = 'in_progress' returning j.id, j.claim
), ended as (
    delete from forge.job j using hit
     where j.id = hit.id and j.id = any(:ids::uuid[]) and hit.status <> 'in_progress' returning j.*
), moved as (
    insert into forge.job_history ({moved})
    select {kept}, 'cancelled', crashes,
           {older_errors} || jsonb_build_object('at', {utc_now}, 'attempt', attempts, 'message', 'cancelled by user',
                                                'traceback', null)
      from ended
)
select id, 'requested', (select count(*) from (select pg_notify('forge.cancel', (claim >> 32)::text)) n) from flagged
union all
select id, 'cancelled', 0 from ended
union all
select h.id, 'ended', 0 from forge.job_history h where h.id = any(:ids::uuid[])

-- name: delete
with hit as materialized (
    select id, status from forge.job where id = any(:ids::uuid[]) order by id for update
), flagged as (
    update forge.job j set cancel_requested_at = coalesce(j.cancel_requested_at, now())
      from hit where j.id = hit.id and j.id = any(:ids::uuid[]) and hit.status = 'in_progress' returning j.id, j.claim
), live as (
    delete from forge.job j using hit
     where j.id = hit.id and j.id = any(:ids::uuid[]) and hit.status <> 'in_progress' returning j.id, j.dedupe_key
), past as (
    delete from forge.job_history h where h.id = any(:ids::uuid[]) returning h.id, h.dedupe_key
), freed as (
    delete from forge.job_key k
     where k.key = any(array(select dedupe_key from live union all select dedupe_key from past))
       and (k.job_id in (select id from live union all select id from past)) is true
)
select id, 'requested', (select count(*) from (select pg_notify('forge.cancel', (claim >> 32)::text)) n) from flagged
union all
select id, 'deleted', 0 from live
union all
select id, 'deleted', 0 from past

-- Back to life: an ended job returns to pending, a waiting one runs now. A job whose key another has taken stays.
-- name: revive
with past as materialized (
    select h.* from forge.job_history h where h.id = any(:ids::uuid[]) order by h.id for update
), keyed as (
    insert into forge.job_key as k (key, job_id) select distinct on (dedupe_key) dedupe_key, id from past
     where dedupe_key is not null order by dedupe_key, id
    on conflict (key) do update set job_id = excluded.job_id, held_until = null
       where k.held_until is not null and (k.held_until <= now() or k.job_id = excluded.job_id)
    returning key, job_id
), taken as (
    delete from forge.job_history h using past p where h.id = p.id and h.id = any(:ids::uuid[])
       and (p.dedupe_key is null or exists (select from keyed k where k.key = p.dedupe_key and k.job_id = p.id))
    returning h.*
), stored as (
    insert into forge.job (id, run_at, enqueued_at, timeout, unique_for, keep_result, priority, attempts, max_attempts,
                           crashes, queue, kind, payload, dedupe_key, tags, errors, line, rate_limit, concurrency_key,
                           concurrency)
    select id, now(), enqueued_at, timeout, unique_for, keep_result, priority,
           case when :reset::boolean then 0 else attempts end, max_attempts,
           case when :reset::boolean then 0 else crashes end, queue, kind, payload, dedupe_key, tags, errors, line,
           rate_limit, concurrency_key, concurrency
      from taken
    returning id, queue
), waiting as materialized (
    select id from forge.job where id = any(:ids::uuid[]) and status in ('pending', 'failed') order by id for update
), hurried as (
    update forge.job j set run_at = least(j.run_at, now()), status = 'pending',
           attempts = case when :reset::boolean then 0 else j.attempts end,
           crashes = case when :reset::boolean then 0 else j.crashes end
      from waiting w where j.id = w.id and j.id = any(:ids::uuid[]) returning j.id, j.queue
), woken as (
    select pg_notify('forge.wake', w.queue)
      from (select distinct queue from (select queue from stored union all select queue from hurried) r) w
)
select id, (select count(*) from woken) from (select id from stored union all select id from hurried) r

-- name: get
select {job_columns}, null::timestamptz, null::json, progress from forge.job where id = any(:ids::uuid[])
union all
select {job_columns}, finished_at, result, null::json from forge.job_history where id = any(:ids::uuid[])

-- Listings: newest first by id, an order that no later change disturbs. A null filter matches all. One statement where
-- both tables are asked: a job that moves from one to the other is in exactly one of them at any moment.
-- name: list_all
(select {job_columns}, null::timestamptz, null::json, progress from forge.job where {filter} order by id desc
  limit :limit::bigint)
union all
(select {job_columns}, finished_at, result, null::json from forge.job_history where {filter} order by id desc
  limit :limit::bigint)
order by id desc limit :limit::bigint

-- name: list_live
select {job_columns}, null::timestamptz, null::json, progress from forge.job where {filter} order by id desc
 limit :limit::bigint

-- name: list_ended
select {job_columns}, finished_at, result, null::json from forge.job_history where {filter} order by id desc
 limit :limit::bigint

-- The same through the small index of the few that people look for.
-- name: list_unhappy
select {job_columns}, finished_at, result, null::json from forge.job_history
 where status in ('dead', 'cancelled') and {filter} order by id desc limit :limit::bigint

-- name: counts
select queue,
       count(*) filter (where status = 'pending' and run_at <= now()),
       count(*) filter (where status = 'pending' and run_at > now()),
       count(*) filter (where status = 'in_progress'),
       count(*) filter (where status = 'failed'),
       coalesce(extract(epoch from now() - min(run_at) filter (where status in ('pending', 'failed')
                                                               and run_at <= now())), 0)::float8
  from forge.job group by queue

-- name: ended_counts
select queue, status::text, count(*) from forge.job_history group by queue, status

-- name: queues
select name, max_workers, paused, backoff_enabled, backoff_base_seconds, backoff_max_seconds, throttle,
       retain_done_days, retain_dead_days, throttle_attempts, throttled_until
  from forge.queue order by name

-- name: set_queue
insert into forge.queue as q (name, max_workers, paused, backoff_enabled, backoff_base_seconds, backoff_max_seconds,
                              throttle, retain_done_days, retain_dead_days)
values (:name, coalesce(:max_workers::int, 1), coalesce(:paused::boolean, false),
        coalesce(:backoff_enabled::boolean, false), coalesce(:backoff_base_seconds::int, 60),
        coalesce(:backoff_max_seconds::int, 1800), coalesce(:throttle::text, 'queue'),
        coalesce(:retain_done_days::float8, 7), coalesce(:retain_dead_days::float8, 30))
on conflict (name) do update set
    max_workers = coalesce(:max_workers::int, q.max_workers), paused = coalesce(:paused::boolean, q.paused),
    backoff_enabled = coalesce(:backoff_enabled::boolean, q.backoff_enabled),
    backoff_base_seconds = coalesce(:backoff_base_seconds::int, q.backoff_base_seconds),
    backoff_max_seconds = coalesce(:backoff_max_seconds::int, q.backoff_max_seconds),
    throttle = coalesce(:throttle::text, q.throttle),
    retain_done_days = coalesce(:retain_done_days::float8, q.retain_done_days),
    retain_dead_days = coalesce(:retain_dead_days::float8, q.retain_dead_days)
returning name, max_workers, paused, backoff_enabled, backoff_base_seconds, backoff_max_seconds, throttle,
          retain_done_days, retain_dead_days, throttle_attempts, throttled_until

-- One small batch of what retention no longer keeps, in the order of ids between two. See `PostgresOperating.prune`. It
-- does not wait for the disk: what a crash brings back is deleted again.
-- name: prune
with walked as materialized (
    select h.id, h.finished_at < now() - make_interval(secs => 86400 * case h.status
               when 'done' then coalesce(q.retain_done_days, 7) else coalesce(q.retain_dead_days, 30) end) as old
      from (select id, finished_at, status, queue from forge.job_history
             where id >= :first::uuid and id <= :last::uuid
               and (select set_config('synchronous_commit', 'off', true)) = 'off'
             order by id limit :n::bigint) h
      left join forge.queue q on q.name = h.queue
), gone as (
    delete from forge.job_history h where h.id = any(array(select id from walked where old)) returning h.id
)
select (select count(*) from walked), (select count(*) from gone), (select id from walked order by id desc limit 1),
       (select id from walked where not old order by id limit 1)

-- name: shortest_retention
select (least(7, 30, min(least(retain_done_days, retain_dead_days))) * 86400)::float8, extract(epoch from now())::float8
  from forge.queue

-- name: prune_keys
delete from forge.job_key where key = any(array(
    select key from forge.job_key where held_until <= now() limit :n::bigint))

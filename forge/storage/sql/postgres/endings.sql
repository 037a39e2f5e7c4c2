-- part: kept
id, run_at, enqueued_at, claimed_at, cancel_requested_at, claim, timeout, unique_for, keep_result, priority, attempts,
max_attempts, queue, kind, payload, dedupe_key, tags, line, rate_limit, concurrency_key, concurrency

-- part: moved
id, run_at, enqueued_at, claimed_at, cancel_requested_at, claim, timeout, unique_for, keep_result, priority, attempts,
max_attempts, queue, kind, payload, dedupe_key, tags, line, rate_limit, concurrency_key, concurrency, status, crashes,
errors

-- The same without `attempts`, which stands after them: refunded to a job that was given back for too long.
-- part: kept_as_judged
id, run_at, enqueued_at, claimed_at, cancel_requested_at, claim, timeout, unique_for, keep_result, priority,
max_attempts, queue, kind, payload, dedupe_key, tags, line, rate_limit, concurrency_key, concurrency

-- part: moved_as_judged
id, run_at, enqueued_at, claimed_at, cancel_requested_at, claim, timeout, unique_for, keep_result, priority,
max_attempts, queue, kind, payload, dedupe_key, tags, line, rate_limit, concurrency_key, concurrency, attempts, status,
crashes, errors

-- A success well past a throttle window: the far end has recovered, the curve starts over. The limit keeps the look
-- into `ended` a subplan, which runs only for a queue that was throttled (as a join it took 0.9 ms a batch).
-- part: warm_up
    update forge.queue q set throttle_attempts = 0, throttled_until = null
     where q.name = any(:queues::text[]) and q.throttle_attempts > 0
       and q.throttled_until <= now() - make_interval(secs => :grace::float8)
       and (select true from ended e where e.queue = q.name limit 1)

-- part: ended_ones
select (select count(*) from ended), array(select id from ended where (select count(*) from ended) <> :n::bigint),
       array(select claim from ended where (select count(*) from ended) <> :n::bigint)

-- part: older_errors
(case when jsonb_array_length(errors) >= 32 then errors - 0 else coalesce(errors, '[]') end)

-- part: utc_now
to_char(now() at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')

-- The hot ending. A row whose token is stale is not found. Answers how many were moved, and which ones only when some
-- are missing: a thousand ids each time cost 1 µs a job.
-- One walk along the primary key finds the ids, which are sorted, so that two transactions lock in one order. The
-- tokens are then looked up in a hash: `is true` keeps that a filter, for as a join it took 5 µs a job more.
-- name: finalize_done
with ended as (
    delete from forge.job j
     where j.id = any(:ids::uuid[])
       and ((j.id, j.claim) in (select t.id, t.claim from unnest(:ids::uuid[], :claims::bigint[]) t(id, claim))) is true
    returning j.*
), warmed as ({warm_up}), moved as (
    insert into forge.job_history ({moved}) select {kept}, 'done', crashes, errors from ended
)
{ended_ones}

-- The same with results to keep.
-- name: finalize_done_results
with ended as (
    delete from forge.job j
     using unnest(:ids::uuid[], :claims::bigint[], :results::text[]) t(id, claim, result)
     where j.id = t.id and j.claim = t.claim
    returning j.*, t.result
), warmed as ({warm_up}), moved as (
    insert into forge.job_history ({moved}, result)
    select {kept}, 'done', crashes, errors, case when keep_result is not null then result::json end from ended
)
{ended_ones}

-- Every other ending, mixed: each row's own state decides what becomes of it. Rows are looked up one by one (lateral)
-- and changed by their ids: a plan cached while the table was empty took the table for the smaller side of a join, and
-- walked two million jobs a thousand times.
-- name: finalize_other
with t as (
    select * from unnest(:ids::uuid[], :claims::bigint[], :outcomes::text[], :delays::float8[], :messages::text[],
                         :tracebacks::text[], :give_ups::float8[])
           t(id, claim, outcome, delay, message, traceback, give_up)
), verdict as materialized (
    select j.id, j.claim, t.outcome, t.traceback, j.errors, j.attempts as tried, j.too_old,
           case when t.outcome in ('released', 'crashed') and coalesce(t.delay, 0) = 0 then j.run_at
                when t.outcome = 'throttled' and (t.delay is null or
                     (select q.throttle from forge.queue q where q.name = j.queue) is distinct from 'hint')
                then greatest(now(), (select q.throttled_until from forge.queue q where q.name = j.queue))
                when t.outcome = 'failed' and t.delay < 0
                then now() + make_interval(secs => coalesce(
                     (select least(q.backoff_base_seconds * 2.0 ^ least(j.attempts, 30), q.backoff_max_seconds)
                        from forge.queue q where q.name = j.queue and q.backoff_enabled), -t.delay))
                else now() + make_interval(secs => coalesce(t.delay, 0)) end as run_at,
           case when j.cancel_requested_at is not null or t.outcome = 'cancelled' then 'cancelled'
                when t.outcome = 'dead' or j.too_old then 'dead'
                when t.outcome = 'failed' then case when j.attempts >= j.max_attempts then 'dead' else 'failed' end
                when t.outcome = 'crashed' and j.crashes + 1 >= :max_crashes::int then 'dead'
                when t.outcome = 'released' and t.delay > 0 then 'failed'
                else 'pending' end::forge.job_status as status,
           j.attempts - (t.outcome in ('throttled', 'snoozed', 'released', 'crashed'))::int as attempts,
           j.crashes + (t.outcome = 'crashed')::int as crashes,
           case when j.cancel_requested_at is not null then 'cancelled by user' else t.message end as said
      from t cross join lateral (
        select f.*, (f.enqueued_at <= now() - make_interval(secs => t.give_up)) is true as too_old
          from forge.job f where f.id = t.id and f.claim = t.claim for update) j
), noted as materialized (
    select v.*, case when v.said is null then v.errors else
             {older_errors} || jsonb_build_object('at', {utc_now}, 'attempt', v.tried, 'message', v.said,
                                                  'traceback', v.traceback) end as all_errors
      from verdict v
), back as (
    update forge.job j set status = v.status, run_at = v.run_at, attempts = v.attempts, crashes = v.crashes,
                           errors = v.all_errors, claim = null, claimed_at = null, progress = null, place = null
      from noted v where j.id = v.id and j.id = any(:ids::uuid[]) and v.status in ('pending', 'failed')
), ended as (
    delete from forge.job j using noted v
     where j.id = v.id and j.id = any(:ids::uuid[]) and v.status in ('dead', 'cancelled')
    returning j.*, v.status as final, v.all_errors, v.crashes as all_crashes,
              case when v.too_old then v.attempts else v.tried end as all_attempts
), moved as (
    insert into forge.job_history ({moved_as_judged})
    select {kept_as_judged}, all_attempts, final, all_crashes, all_errors from ended
)
select id, claim, status::text from noted

-- Which of these endings had ended their job already: asked after a finalize whose answer was lost.
-- name: finalized
select h.id, h.claim from unnest(:ids::uuid[], :claims::bigint[]) t(id, claim)
  cross join lateral (select f.id, f.claim from forge.job_history f where f.id = t.id and f.claim = t.claim limit 1) h

-- Give back the keys of jobs that have ended: at once, or after unique_for. Keys are found by themselves alone and
-- their owners looked up in a hash, as in finalize_done; a join could walk all keys.
-- name: settle_keys
with ended as materialized (
    select h.id, h.dedupe_key, h.unique_for is null as free
      from forge.job_history h where h.id = any(:ids::uuid[]) and h.dedupe_key is not null
), freed as (
    delete from forge.job_key k where k.key = any(array(select e.dedupe_key from ended e where e.free))
       and (k.job_id in (select e.id from ended e where e.free)) is true
)
update forge.job_key k
   set held_until = (select h.finished_at + make_interval(secs => h.unique_for) from forge.job_history h
                      where h.id = k.job_id)
 where k.key = any(array(select e.dedupe_key from ended e where not e.free))
   and (k.job_id in (select e.id from ended e where not e.free)) is true

-- name: ensure_queue
insert into forge.queue (name) values (:queue) on conflict do nothing

-- The first throttle of a window sets the window and advances the counter; the rest of the window changes nothing.
-- It counts only if one of the throttled claims is still ours. :hint is the handler's own wish, which only a queue
-- with throttle = 'hint' grants; there, a handler may ask it for its job alone.
-- name: cool_down
update forge.queue q set throttle_attempts = least(q.throttle_attempts + 1, 30),
       throttled_until = now() + make_interval(secs => case
           when q.throttle = 'hint' and :hint::float8 is not null then :hint::float8
           when not q.backoff_enabled then 60
           else least(q.backoff_base_seconds * 2.0 ^ q.throttle_attempts, q.backoff_max_seconds) end)
 where q.name = :queue and coalesce(q.throttled_until <= now(), true)
   and not (q.throttle = 'hint' and :job_only::boolean)
   and exists (select from unnest(:ids::uuid[], :claims::bigint[]) t(id, claim) cross join lateral (
                   select from forge.job f where f.id = t.id and f.claim = t.claim limit 1) j)

-- Jobs were given back: they may lie in front of every pod's marks. A pod of the release before hears of the first
-- alone.
-- name: notify_back
select pg_notify('forge.wake', w.queue), pg_notify('forge.back', w.queue) from unnest(:queues::text[]) w(queue)

-- How far running jobs are. Ids come sorted: rows are locked in one order.
-- name: progress
with ours as materialized (
    select j.id, t.percent, t.message
      from unnest(:ids::uuid[], :claims::bigint[], :percents::float8[], :messages::text[])
           t(id, claim, percent, message)
     cross join lateral (select f.id from forge.job f where f.id = t.id and f.claim = t.claim for no key update) j
)
update forge.job j set progress = json_build_object('percent', o.percent, 'message', o.message, 'at', {utc_now})
  from ours o where j.id = o.id and j.id = any(:ids::uuid[])

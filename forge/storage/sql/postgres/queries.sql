-- Every statement forge sends to PostgreSQL. Parameters are :names; see forge/storage/statements.py.
--
-- The hot ones (claim, finalize_*) find rows by index and nothing else, whatever the statistics say: their connections
-- have run `plan_by_index`, or their transaction has where a pooler stands in between. A plan made while the table was
-- empty and then cached (a sequential scan) cost 99 µs a job instead of 15 at 100,000 jobs.

-- Parts that several queries share; {name} stands for one.

-- part: job_columns
id, queue, kind, status::text, payload, priority, attempts, max_attempts, crashes, timeout, run_at, enqueued_at, claimed_at,
dedupe_key, unique_for, keep_result, tags, errors::json, cancel_requested_at, claim >> 32, line, rate_limit, concurrency_key,
concurrency, now()

-- part: filter
id < :before::uuid
   and (:statuses::text[] is null or status::text = any(:statuses::text[]))
   and (:queues::text[] is null or queue = any(:queues::text[]))
   and (:kinds::text[] is null or kind = any(:kinds::text[]))
   and (:tag::text is null or tags @> array[:tag::text])

-- part: kept
id, run_at, enqueued_at, claimed_at, cancel_requested_at, claim, timeout, unique_for, keep_result, priority, attempts,
max_attempts, queue, kind, payload, dedupe_key, tags, line, rate_limit, concurrency_key, concurrency

-- part: moved
id, run_at, enqueued_at, claimed_at, cancel_requested_at, claim, timeout, unique_for, keep_result, priority, attempts,
max_attempts, queue, kind, payload, dedupe_key, tags, line, rate_limit, concurrency_key, concurrency, status, crashes, errors

-- The same without `attempts`, which stands after them: refunded to a job that was given back for too long.
-- part: kept_as_judged
id, run_at, enqueued_at, claimed_at, cancel_requested_at, claim, timeout, unique_for, keep_result, priority,
max_attempts, queue, kind, payload, dedupe_key, tags, line, rate_limit, concurrency_key, concurrency

-- part: moved_as_judged
id, run_at, enqueued_at, claimed_at, cancel_requested_at, claim, timeout, unique_for, keep_result, priority,
max_attempts, queue, kind, payload, dedupe_key, tags, line, rate_limit, concurrency_key, concurrency, attempts, status, crashes, errors

-- A success well past a throttle window: the far end has recovered, the curve starts over. The limit keeps the look into
-- `ended` a subplan, which runs only for a queue that was throttled (as a join it took 0.9 ms a batch).
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

-- name: plan_by_index
select count(set_config(name, value, :local::boolean))
  from (values ('enable_seqscan', 'off'), ('enable_bitmapscan', 'off'), ('enable_sort', 'off'),
               ('enable_incremental_sort', 'off'), ('enable_hashjoin', 'off'), ('enable_mergejoin', 'off'), ('jit', 'off'), ('plan_cache_mode', 'force_generic_plan')) s(name, value)

-- The same connections for once without.
-- name: plan_by_scan
select set_config('enable_seqscan', 'on', true)

-- Marks as a table. Times come as they are stored, in microseconds.
-- part: marks
unnest(:mark_queues::text[], :mark_priorities::bigint[], :mark_run_ats::bigint[], :mark_ids::uuid[]) m(queue, priority, at, id)

-- part: mark_columns
m.queue, m.priority::int as priority, timestamptz '2000-01-01 00:00+00' + m.at * interval '1 microsecond' as run_at, m.id

-- The next priority after l.priority that has a job or a mark: n is the next one that has a mark. Between two of those
-- there are no entries but of jobs that others have claimed; so the dead ones of those that have marks are not read here.
-- part: next_level
coalesce((select j.priority::int from forge.job j
           where j.queue = l.queue and j.line is null and j.priority > l.priority and j.priority < n.priority
           order by j.priority limit 1), nullif(n.priority, 32768))

-- part: next_mark
(select coalesce(min(m.priority), 32768) as priority from mark m where m.queue = l.queue and m.priority > l.priority) n

-- Bytes that a payload has when it is read. Of one that is stored as it is that is known without reading it.
-- part: payload_size
case when pg_column_compression(j.payload) is null then pg_column_size(j.payload) else octet_length(j.payload::text) end

-- Claim up to :n plain jobs of a queue in the order (priority, run_at, id), in each priority from behind its mark.
--
-- The recursion hops from one priority to the next: within a priority the due jobs are one range, so a million
-- jobs scheduled for next year in front of the due ones of a later priority are never read. The marks bound each
-- priority from below: entries of jobs already claimed stay in the index until no snapshot needs them, and
-- reading past 200,000 of them took 42 ms.
-- Losing a claim in a crash of the database only makes the job pending again: the claim turns off, for its own
-- transaction, the wait for the disk.
-- The lock on the pod's row is the fence: who takes a pod for dead locks that row too, and so either waits for this claim
-- and then finds it, or comes first and is seen here.
-- Row addresses are gathered into one array: the limit holds whatever plan joins it (a plain IN can over-claim),
-- and each is safe because its row is locked in this same statement.
-- The last job is the one with which their payloads come to :most_bytes. To add them up costs 0.1 µs a job; where it ends is
-- found out only if they are too many. Those behind it were locked for nothing, which who sees large payloads coming
-- avoids by a small :n. (With a window over all of them it was 0.4 µs a job.)
-- name: claim
with recursive mark as materialized (select {mark_columns} from {marks}), level(queue, priority) as (
    select :queue::text, -32769
    union all
    select l.queue, {next_level} from level l cross join lateral {next_mark} where l.priority is not null
)
update forge.job set status = 'in_progress', attempts = attempts + 1, claim = :claim::bigint, claimed_at = now()
 where ctid = any((
    select case when sum(due.size) < :most_bytes::bigint then array_agg(due.ctid) else (
               select array_agg(u.ctid) from (
                   select u.ctid, sum(j.size) over (order by u.i rows unbounded preceding) - j.size as before
                     from unnest(array_agg(due.ctid)) with ordinality u(ctid, i) cross join lateral (
                       select {payload_size} as size from forge.job j where j.ctid = u.ctid) j) u
                where u.before < :most_bytes::bigint) end
      from (
        select due.ctid, due.size from level l left join mark m on m.priority = l.priority cross join lateral (
            select j.ctid, {payload_size} as size from forge.job j
             where j.queue = :queue and j.line is null and j.status in ('pending', 'failed') and j.priority = l.priority
               and j.run_at <= now()
               and (j.run_at, j.id) > (coalesce(m.run_at, '-infinity'), coalesce(m.id, '00000000-0000-0000-0000-000000000000'))
             order by j.run_at, j.id limit :n::bigint
             for update skip locked) due
         where (select not q.paused and coalesce(q.throttled_until <= now(), true) from forge.queue q where q.name = :queue)
               is not false
           and exists (select from forge.pod where id = :claim::bigint >> 32 and reaped_at is null for key share)
           and (not :unsynced::boolean or (select set_config('synchronous_commit', 'off', true)) = 'off')
         limit :n::bigint) due)::tid[])
returning priority, run_at, id, kind, payload, attempts, max_attempts, timeout, keep_result, dedupe_key

-- Reads the whole table, in pieces of so many pages: however large it is, each of them is answered soon, or the connection
-- is dead. They are read in one snapshot, or a row that moves to another page meanwhile might be in none.
-- name: job_pages
select pg_relation_size('forge.job') / current_setting('block_size')::int

-- part: in_piece
ctid >= :first::text::tid and ctid < :end::text::tid

-- What claims whose answer was lost had in fact claimed: for after an outage.
-- name: claimed
select id, claim, dedupe_key is not null, queue from forge.job
 where {in_piece} and status = 'in_progress' and claim = any(:claims::bigint[])

-- The hot ending. A row whose token is stale is not found. Answers how many were moved, and which ones only when some are
-- missing: a thousand ids each time cost 1 µs a job.
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

-- Every other ending, mixed: each row's own state decides what becomes of it. Rows are looked up one by one (lateral) and
-- changed by their ids: a plan cached while the table was empty took the table for the smaller side of a join, and walked
-- two million jobs a thousand times.
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
                           errors = v.all_errors, claim = null, claimed_at = null, progress = null, slot = null
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

-- name: wait_for_locks
select set_config('lock_timeout', :wait::text, :local::boolean)

-- Jobs whose row, or whose key's row, somebody has locked at this moment. What can be locked is let go of at once.
-- name: locked_jobs
with ours as materialized (
    select f.id, f.dedupe_key from forge.job f where f.id = any(:ids::uuid[])
), free as materialized (
    select f.id from forge.job f where f.id = any(:ids::uuid[]) for update skip locked
), their_keys as materialized (
    select k.key from forge.job_key k where k.key = any(array(select o.dedupe_key from ours o where o.dedupe_key is not null))
), free_keys as materialized (
    select k.key from forge.job_key k where k.key = any(array(select t.key from their_keys t)) for update skip locked
)
select o.id from ours o
 where not exists (select from free f where f.id = o.id)
    or o.dedupe_key in (select t.key from their_keys t where not exists (select from free_keys f where f.key = t.key))

-- Who has locked a job's row: its transaction is on the row. Not told where several share the lock.
-- name: lock_holder
select a.pid, a.application_name, coalesce(a.state, ''), extract(epoch from now() - a.xact_start)::float8
  from forge.job j join pg_locks l on l.locktype = 'transactionid' and l.transactionid = j.xmax and l.granted
  join pg_stat_activity a on a.pid = l.pid
 where j.id = :id::uuid and a.pid <> pg_backend_pid() limit 1

-- Who may hold what an ending needs besides its row, a key that is not yet committed for example: the oldest transaction
-- that has locked or written rows of these tables.
-- name: lock_suspect
select a.pid, a.application_name, coalesce(a.state, ''), extract(epoch from now() - a.xact_start)::float8
  from pg_locks l join pg_stat_activity a on a.pid = l.pid
 where l.locktype = 'relation' and l.granted and l.mode <> 'AccessShareLock' and a.pid <> pg_backend_pid()
   and l.database = (select d.oid from pg_database d where d.datname = current_database())
   and l.relation in ('forge.job'::regclass, 'forge.job_key'::regclass, 'forge.queue'::regclass, 'forge.line_queue'::regclass)
   and a.xact_start < now() - interval '3 s'
 order by a.xact_start limit 1

-- What an ending writes, to be undone: whether the database takes any.
-- name: try_history
insert into forge.job_history (id, run_at, enqueued_at, timeout, status, priority, attempts, max_attempts, crashes, queue,
                               kind, payload, result)
values (gen_random_uuid(), now(), now(), 0, 'done', 0, 0, 0, 0, '', '', 'null', to_json(:result::text))

-- name: try_job
delete from forge.job where id = gen_random_uuid()

-- Which of these endings had ended their job already: asked after a finalize whose answer was lost.
-- name: finalized
select h.id, h.claim from unnest(:ids::uuid[], :claims::bigint[]) t(id, claim)
  cross join lateral (select f.id, f.claim from forge.job_history f where f.id = t.id and f.claim = t.claim limit 1) h

-- Give back the keys of jobs that have ended: at once, or after unique_for. Keys are found by themselves alone and their
-- owners looked up in a hash, as in finalize_done; a join could walk all keys.
-- name: settle_keys
with ended as materialized (
    select h.id, h.dedupe_key, h.unique_for is null as free
      from forge.job_history h where h.id = any(:ids::uuid[]) and h.dedupe_key is not null
), freed as (
    delete from forge.job_key k where k.key = any(array(select e.dedupe_key from ended e where e.free))
       and (k.job_id in (select e.id from ended e where e.free)) is true
)
update forge.job_key k
   set held_until = (select h.finished_at + make_interval(secs => h.unique_for) from forge.job_history h where h.id = k.job_id)
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

-- One job without a key, the commonest call: with the arrays of `enqueue` below it took 1.9 ms, with this 0.8, most of
-- it the commit.
-- If an idle pod has offered to take the next job of the queue, this one is stored as claimed by it and sent to it in the
-- notification: a wake-up, a claim and its answer less (see forge/master/queues/offers.py), for 0.1 ms more here. What makes a
-- claim safe makes this safe: the same token, and the same lock on the pod's row. If the id is known, the offer is gone
-- for nothing, and is made again some day.
-- name: enqueue_one
with offer as materialized (
    delete from forge.offer where ctid = (
        select o.ctid from forge.offer o
         where :push::boolean and o.queue = :queue and :run_at::float8 is null and :delay::float8 = 0
           and octet_length(:payload::text) + octet_length(:kind::text) < 6000  -- a notification has room for 8000 bytes
           and (select not q.paused and coalesce(q.throttled_until <= now(), true)
                  from forge.queue q where q.name = :queue) is not false
           and exists (select from forge.pod p where p.id = o.claim >> 32 and p.reaped_at is null
                          and p.beat_at > now() - make_interval(secs => o.beat_within) for key share)
         order by o.number limit 1 for update skip locked)
    returning claim, channel
)
insert into forge.job as j (id, queue, kind, payload, priority, run_at, max_attempts, timeout, keep_result, tags, status,
                            attempts, claim, claimed_at)
select :id::uuid, :queue, :kind, :payload::text::json, :priority::smallint,
       case when :run_at::float8 is null then now() + make_interval(secs => :delay::float8)
            else to_timestamp(:run_at::float8) end,
       :max_attempts::smallint, :timeout::int, :keep_result::int, :tags::text::text[],
       case when o.claim is null then 'pending' else 'in_progress' end::forge.job_status,
       (o.claim is not null)::int, o.claim, case when o.claim is not null then now() end
  from (select) one left join offer o on true
 where not exists (select from forge.job_history h where h.id = :id::uuid)
on conflict (id) do nothing
returning case when j.claim is not null
               then pg_notify((select o.channel from offer o), json_build_array(
                        j.claim, j.priority, (extract(epoch from j.run_at) * 1000000)::bigint, j.id, j.queue, j.kind,
                        j.max_attempts, j.timeout, j.keep_result)::text || chr(10) || j.payload)::text
               when (select q.wake from forge.queue q where q.name = j.queue) is not false
               then pg_notify('forge.wake', j.queue)::text end

-- An offer, unless the table has grown: then somebody's old transaction keeps dead rows in it, and who stores jobs would
-- read them all.
-- name: offer
insert into forge.offer (queue, claim, channel, beat_within)
select :queue, :claim::bigint, :channel, :beat_within::real
 where pg_relation_size('forge.offer') <= :most_bytes::bigint
returning claim

-- Those that still stand; the others had been taken. Waits for who is taking one.
-- name: withdraw
delete from forge.offer where claim = any(:claims::bigint[]) returning claim

-- Store jobs. An id that is known, live or ended, is left as it is. A key is taken by an upsert, which waits for a
-- racing producer and then sees what it did; a key that was not won answers with the id of the job that has it, or
-- null if that job came in after this statement began (the caller asks again).
-- Ids are looked up one by one: as anti-joins, planned while the tables were empty, they walked the whole primary key.
-- name: enqueue
with t as (
    select * from unnest(:ids::uuid[], :queues::text[], :kinds::text[], :payloads::text[], :priorities::smallint[],
                         :run_ats::float8[], :delays::float8[], :max_attempts::smallint[], :timeouts::int[],
                         :dedupe_keys::text[], :unique_fors::int[], :keep_results::int[], :tags::text[], :lines::text[],
                         :rate_limits::text[], :concurrency_keys::text[], :concurrencies::smallint[])
        with ordinality t(id, queue, kind, payload, priority, run_at, delay, max_attempts, timeout, dedupe_key,
                          unique_for, keep_result, tags, line, rate_limit, concurrency_key, concurrency, n)
), fresh as materialized (
    select * from t where (select true from forge.job j where j.id = t.id limit 1) is null
                      and (select true from forge.job_history h where h.id = t.id limit 1) is null
), keyed as (
    insert into forge.job_key as k (key, job_id)
    select distinct on (dedupe_key) dedupe_key, id from fresh where dedupe_key is not null order by dedupe_key, n
    on conflict (key) do update set job_id = excluded.job_id, held_until = null where k.held_until <= now()
    returning key, job_id
), stored as (
    insert into forge.job (id, queue, kind, payload, priority, run_at, max_attempts, timeout, dedupe_key, unique_for,
                           keep_result, tags, line, rate_limit, concurrency_key, concurrency)
    select f.id, f.queue, f.kind, f.payload::json, f.priority,
           case when f.run_at is null then now() + make_interval(secs => f.delay) else to_timestamp(f.run_at) end,
           f.max_attempts, f.timeout, f.dedupe_key, f.unique_for, f.keep_result, f.tags::text[], f.line, f.rate_limit,
           f.concurrency_key, f.concurrency
      from fresh f
     where f.dedupe_key is null or exists (select from keyed k where k.key = f.dedupe_key and k.job_id = f.id)
    on conflict (id) do nothing
    returning id, queue
), marked as (
    insert into forge.line_queue (queue) select distinct f.queue from fresh f
     where f.line is not null and not exists (select from forge.line_queue l where l.queue = f.queue) order by f.queue
    on conflict do nothing
), woken as (
    select pg_notify('forge.wake', w.queue) from (select distinct queue from stored) w
      left join forge.queue q on q.name = w.queue where q.wake is not false
)
select t.n, case when t.dedupe_key is null or not exists (select from fresh f where f.id = t.id) then t.id
                 else coalesce((select k.job_id from keyed k where k.key = t.dedupe_key),
                               (select k.job_id from forge.job_key k where k.key = t.dedupe_key)) end,
       (select count(*) from woken)
  from t order by t.n

-- Bulk without keys: COPY, then this in the same transaction.
-- name: copy_jobs
copy forge.job (id, queue, kind, payload, priority, max_attempts, timeout, keep_result, tags) from stdin (format binary)

-- name: copy_jobs_timed
copy forge.job (id, queue, kind, payload, priority, max_attempts, timeout, keep_result, tags, run_at) from stdin (format binary)

-- The same with lines, and a queue of theirs is marked as one.
-- name: copy_jobs_lined
copy forge.job (id, queue, kind, payload, priority, max_attempts, timeout, keep_result, tags, run_at, line, rate_limit,
                concurrency_key, concurrency) from stdin (format binary)

-- name: mark_lines
insert into forge.line_queue (queue) select w.queue from unnest(:queues::text[]) w(queue)
 where not exists (select from forge.line_queue l where l.queue = w.queue) order by w.queue
on conflict do nothing

-- name: notify
select pg_notify('forge.wake', w.queue) from unnest(:queues::text[]) w(queue)
  left join forge.queue q on q.name = w.queue where q.wake is not false

-- Jobs were given back: they may lie in front of every pod's marks. A pod of the release before hears of the first alone.
-- name: notify_back
select pg_notify('forge.wake', w.queue), pg_notify('forge.back', w.queue) from unnest(:queues::text[]) w(queue)

-- Whether a bulk stored a job again that had ended: asked in the same transaction after the COPY, so a job that ended
-- meanwhile is seen. A bulk's ids were made together, so history has hardly ever anything in their range.
-- name: ended_between
select exists (select from forge.job_history where id between :first::uuid and :last::uuid)

-- name: ended_already
select exists (select from forge.job_history where id = any(:ids::uuid[]))

-- name: clock
select extract(epoch from now())::float8

-- A taken key with on_conflict: change the job that has it, if it has not started.
-- name: replace_payload
update forge.job set payload = :payload::text::json where id = :id::uuid and status in ('pending', 'failed') returning id

-- name: push_run_at
update forge.job set run_at = case when :run_at::float8 is null then now() + make_interval(secs => :delay::float8)
                                   else to_timestamp(:run_at::float8) end
 where id = :id::uuid and status = 'pending' returning id

-- name: set_wake
update forge.queue set wake = :wake::boolean where name = :queue and wake <> :wake::boolean

-- name: register_pod
insert into forge.pod (name, host, pid, queues, capacity, label)
values (:name, :host, :pid::int, :queues::text[], :capacity::int, :label::text)
returning id, started_at, beat_at

-- name: beat
update forge.pod set beat_at = now() where id = :pod::int and reaped_at is null returning id

-- A beat and what the pod polls for at the same time: one row at least, without a pod if it is gone, and without a job if
-- nothing is to be cancelled. `> '-infinity'` and not `is not null`: a condition on the index's key makes it the one that is
-- used, even by who has no statistics.
-- name: pulse
with beat as (
    update forge.pod set beat_at = now() where id = :pod::int and reaped_at is null returning id
)
select p.id, r.id, r.claim from (select (select id from beat) as id) p left join lateral (
    select j.id, j.claim from forge.job j
     where j.cancel_requested_at > '-infinity' and j.claim >= :pod::bigint << 32 and j.claim < (:pod::bigint + 1) << 32) r
    on p.id is not null

-- How far running jobs are. Ids come sorted: rows are locked in one order.
-- name: progress
with ours as materialized (
    select j.id, t.percent, t.message
      from unnest(:ids::uuid[], :claims::bigint[], :percents::float8[], :messages::text[]) t(id, claim, percent, message)
     cross join lateral (select f.id from forge.job f where f.id = t.id and f.claim = t.claim for no key update) j
)
update forge.job j set progress = json_build_object('percent', o.percent, 'message', o.message, 'at', {utc_now})
  from ours o where j.id = o.id and j.id = any(:ids::uuid[])

-- Seconds until something may be claimed from these queues. Hops over priorities as the claim does, from the same marks:
-- the first entry of each is its earliest; of all lines together it is the first of an index of their own. A queue that
-- cools down is not before that ends; a paused one is left out.
-- name: next_due
with recursive mark as materialized (select {mark_columns} from {marks}), level(queue, priority) as (
    select w.queue, -32769 from unnest(:queues::text[]) w(queue)
    union all
    select l.queue, {next_level} from level l cross join lateral {next_mark} where l.priority is not null
), due(queue, run_at) as (
    select l.queue, d.run_at
      from level l left join mark m on m.queue = l.queue and m.priority = l.priority cross join lateral (
        select j.run_at from forge.job j
         where j.queue = l.queue and j.line is null and j.status in ('pending', 'failed') and j.priority = l.priority
           and (j.run_at, j.id) > (coalesce(m.run_at, '-infinity'), coalesce(m.id, '00000000-0000-0000-0000-000000000000'))
         order by j.run_at, j.id limit 1) d
    union all
    select w.queue, d.run_at from unnest(:queues::text[]) w(queue) cross join lateral (
        select j.run_at from forge.job j where j.queue = w.queue and j.line is not null and j.slot is null
         order by j.run_at limit 1) d
)
select extract(epoch from min(greatest(due.run_at, q.throttled_until)) - now())::float8
  from due left join forge.queue q on q.name = due.queue
 where q.paused is not true

-- In each priority of a queue the time before which no job waits, whether or not it could be claimed now; at most a little
-- before now, for what is still to be committed.
-- name: waiting
with recursive mark as materialized (select {mark_columns} from {marks}), level(queue, priority) as (
    select :queue::text, -32769
    union all
    select l.queue, {next_level} from level l cross join lateral {next_mark} where l.priority is not null
)
select l.priority, least(w.run_at, now() - make_interval(secs => :margin::float8))
  from level l left join mark m on m.priority = l.priority left join lateral (
    select j.run_at from forge.job j
     where j.queue = :queue and j.line is null and j.status in ('pending', 'failed') and j.priority = l.priority
       and (j.run_at, j.id) > (coalesce(m.run_at, '-infinity'), coalesce(m.id, '00000000-0000-0000-0000-000000000000'))
     order by j.run_at, j.id limit 1) w on true
 where l.priority > -32769

-- name: serve_queues
update forge.pod set queues = :queues::text[], capacity = :capacity::int where id = :pod::int

-- name: pods
select id, name, host, pid, queues, started_at, beat_at, capacity, label from forge.pod where reaped_at is null order by id

-- A pod goes in three steps, so that whoever dies between them leaves no claim without an owner: it is marked (and claims
-- no more), its claims are taken back, its row is deleted. `for update` waits for claims under way.
-- name: mark_pod
with gone as materialized (select id from forge.pod where id = :pod::int for update)
update forge.pod p set reaped_at = coalesce(p.reaped_at, now()) from gone where p.id = gone.id

-- Pods that have stopped beating, and those that were marked a while ago by somebody who did not come to the end. A beat
-- that came first makes this miss its row; one that comes later finds none. One that is claiming is looked at next time.
-- name: mark_stale_pods
with gone as materialized (
    select id from forge.pod
     where beat_at < now() - make_interval(secs => :stale::float8) and reaped_at is null
        or reaped_at < now() - make_interval(secs => :unfinished::float8)
     order by id for update skip locked
)
update forge.pod p set reaped_at = now() from gone where p.id = gone.id returning p.id

-- The claims of pods that are gone; with :orphans those of pods nobody knows of, too. Reads the whole table, which may take
-- longer than services have: cut short each time, nobody would ever be reaped. Its own limit is part of its transaction.
-- name: take_your_time
select set_config('statement_timeout', '15min', true)

-- A COPY lasts as long as its producer makes jobs.
-- name: no_hurry
select set_config('statement_timeout', '0', true)

-- name: claims_of_pods
select id, claim, dedupe_key is not null, queue from forge.job j
 where {in_piece} and status = 'in_progress'
   and (claim >> 32 = any(:pods::bigint[])
        or :orphans::boolean and not exists (select from forge.pod p where p.id = j.claim >> 32))

-- name: remove_pods
with offers as (delete from forge.offer o where o.claim >> 32 = any(:pods::bigint[]))
delete from forge.pod where id = any(:pods::int[]) and reaped_at is not null

-- name: cancel_requests
select id, claim from forge.job
 where cancel_requested_at > '-infinity' and claim >= :pod::bigint << 32 and claim < (:pod::bigint + 1) << 32

-- The verbs of operators run planned by index too (locally), and bind rows by id wherever they join: a plan cached while the
-- tables were empty may not walk a backlog of millions.

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
           case when :reset::boolean then 0 else crashes end, queue, kind, payload, dedupe_key, tags, errors, line, rate_limit,
           concurrency_key, concurrency
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
(select {job_columns}, null::timestamptz, null::json, progress from forge.job where {filter} order by id desc limit :limit::bigint)
union all
(select {job_columns}, finished_at, result, null::json from forge.job_history where {filter} order by id desc limit :limit::bigint)
order by id desc limit :limit::bigint

-- name: list_live
select {job_columns}, null::timestamptz, null::json, progress from forge.job where {filter} order by id desc limit :limit::bigint

-- name: list_ended
select {job_columns}, finished_at, result, null::json from forge.job_history where {filter} order by id desc limit :limit::bigint

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
       coalesce(extract(epoch from now() - min(run_at) filter (where status in ('pending', 'failed') and run_at <= now())), 0)::float8
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
values (:name, coalesce(:max_workers::int, 1), coalesce(:paused::boolean, false), coalesce(:backoff_enabled::boolean, false),
        coalesce(:backoff_base_seconds::int, 60), coalesce(:backoff_max_seconds::int, 1800),
        coalesce(:throttle::text, 'queue'), coalesce(:retain_done_days::float8, 7), coalesce(:retain_dead_days::float8, 30))
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

-- One small batch of what retention no longer keeps, in the order of ids between two. See `PostgresStorage.prune`. It does
-- not wait for the disk: what a crash brings back is deleted again.
-- name: prune
with walked as materialized (
    select h.id, h.finished_at < now() - make_interval(secs => 86400 * case h.status
               when 'done' then coalesce(q.retain_done_days, 7) else coalesce(q.retain_dead_days, 30) end) as old
      from (select id, finished_at, status, queue from forge.job_history
             where id >= :first::uuid and id <= :last::uuid and (select set_config('synchronous_commit', 'off', true)) = 'off'
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

-- name: schema_version
select max(number) from forge.migration

-- name: oldest_release
select max(coalesce(oldest, number)) from forge.migration

-- Which database a connection is on, whatever address and pooler it goes by: a server has been started at a time that
-- no other has, to the microsecond.
-- name: where_am_i
select (select oid::bigint from pg_catalog.pg_database where datname = current_database()),
       (extract(epoch from pg_postmaster_start_time()) * 1000000)::bigint,
       current_database()::text, host(inet_server_addr()), inet_server_port()

-- name: schema_exists
select to_regclass('forge.migration') is not null

-- -- leases ------------------------------------------------------------------------------------------------------

-- A term must not be issued twice, so it is on disk before it is known: else a crash could take it back.
-- name: wait_for_disk
select set_config('synchronous_commit', 'on', true) where current_setting('synchronous_commit') = 'off'

-- A takeover waits for the writes of the term before. Not for long at a time: beats are on the same connection.
-- name: wait_a_moment
select set_config('lock_timeout', '1s', true)

-- The lease is free if it was given back or has lapsed, is the asker's own (whose earlier answer was lost), or its pod is
-- no more. One that was renewed in the future has lapsed too, or a clock set back by an hour would leave the cluster
-- without a leader for that hour; by less than the TTL it may only be that another statement began later and came first.
-- name: acquire_lease
with taken as (
    update forge.leader l set term = l.term + 1, holder = :key, pod = :pod::int, host = :host, pid = :pid::int,
           since = now(), renewed_at = now(), until = now() + make_interval(secs => :ttl::float8)
     where l.holder is null or l.until <= now() or l.renewed_at > now() + make_interval(secs => :ttl::float8)
        or l.holder = :key or (l.pod is not null and not exists (select from forge.pod p where p.id = l.pod and p.reaped_at is null))
    returning l.term
)
select (select term from taken), extract(epoch from until - now())::float8 from forge.leader

-- The row again, if somebody has emptied the table. Terms must not come twice, and the last one is not known any more:
-- the seconds since 1970 are more than there ever were.
-- name: restore_lease
insert into forge.leader (term) values (extract(epoch from now())::bigint) on conflict do nothing

-- name: renew_lease
update forge.leader set pod = :pod::int, renewed_at = now(), until = now() + make_interval(secs => :ttl::float8)
 where term = :term::bigint and holder = :key

-- The others are told, so that one of them leads at once.
-- name: release_lease
update forge.leader set holder = null, until = now() where term = :term::bigint and holder is not null
returning pg_notify('forge.leader', '')::text

-- name: leader
select term, pod, host, pid, since, until from forge.leader where holder is not null and until > now()

-- The first statement of a leader's write: no row, no write. See the table for the lock.
-- name: hold_term
select term from forge.leader where term = :term::bigint and holder is not null for key share

-- -- schedules ---------------------------------------------------------------------------------------------------

-- part: schedule_columns
s.name, s.expression, s.kind, s.payload, s.timezone, s.queue, s.priority, s.max_attempts, s.timeout, s.keep_result, s.dedupe_key,
s.unique_for, s.tags, s.catch_up, s.jitter, s.source, s.line, s.project, s.paused, s.disabled, s.next_at, s.last_slot, s.last_job, s.last_skipped, s.revision,
s.paused_at, s.pauses::text

-- name: schedules
select {schedule_columns} from forge.schedule s order by s.name

-- name: schedule
select {schedule_columns} from forge.schedule s where s.name = :name

-- Due ones, the longest due first, with the next slot of all and the time by which they are due: one row at least, without
-- a name if there is none.
-- name: due_schedules
select {schedule_columns}, (select min(a.next_at) from forge.schedule a where not a.paused and a.disabled is null), c.now from (select now() as now) c left join lateral (
    select * from forge.schedule d where not d.paused and d.disabled is null and d.next_at <= c.now
     order by d.next_at, d.name limit :n::bigint) s on true
 order by s.next_at, s.name

-- Add a schedule or change one of the sources :over, if there is anything to change. What it says of time decides whether
-- its next slot is found anew.
-- name: put_schedule
insert into forge.schedule as s (name, expression, kind, payload, timezone, queue, priority, max_attempts, timeout, keep_result,
                                 dedupe_key, unique_for, tags, catch_up, jitter, source, line, project, disabled, next_at)
values (:name, :expression, :kind, :payload::text::json, :timezone, :queue, :priority::smallint, :max_attempts::smallint,
        :timeout::int, :keep_result::int, :dedupe_key::text, :unique_for::int, :tags::text[], :catch_up, :jitter::float8, :source,
        :line::text::json, :project, :disabled::text, :next_at::timestamptz)
on conflict (name) do update set
    expression = excluded.expression, kind = excluded.kind, payload = excluded.payload, timezone = excluded.timezone,
    queue = excluded.queue, priority = excluded.priority, max_attempts = excluded.max_attempts, timeout = excluded.timeout,
    keep_result = excluded.keep_result, dedupe_key = excluded.dedupe_key, unique_for = excluded.unique_for, tags = excluded.tags,
    catch_up = excluded.catch_up, jitter = excluded.jitter, source = excluded.source, line = excluded.line, project = excluded.project,
    revision = s.revision + 1,
    disabled = case when (s.expression, s.timezone) = (excluded.expression, excluded.timezone) then s.disabled
                    else excluded.disabled end,
    next_at = case when (s.expression, s.timezone) = (excluded.expression, excluded.timezone) then s.next_at
                   else excluded.next_at end
 where s.source = any(:over::text[])
   and (s.expression, s.kind, s.payload::text, s.timezone, s.queue, s.priority, s.max_attempts, s.timeout, s.keep_result,
        s.dedupe_key, s.unique_for, s.tags, s.catch_up, s.jitter, s.source, s.line::text, s.project)
       is distinct from
       (excluded.expression, excluded.kind, excluded.payload::text, excluded.timezone, excluded.queue, excluded.priority,
        excluded.max_attempts, excluded.timeout, excluded.keep_result, excluded.dedupe_key, excluded.unique_for, excluded.tags,
        excluded.catch_up, excluded.jitter, excluded.source, excluded.line::text, excluded.project)
returning name, pg_notify('forge.schedule', '')::text

-- name: lock_schedules
select name, source, project from forge.schedule where project = :project or name = any(:names::text[])
 order by name for no key update

-- name: remove_declared
delete from forge.schedule where source in ('config', 'code') and project = :project and name <> all(:names::text[])
returning name

-- name: remove_schedule
delete from forge.schedule where name = :name and (source = 'runtime' or :declared::boolean) returning name

-- name: pause_schedule
update forge.schedule set paused = true, paused_at = case when paused then paused_at else clock_timestamp() end
 where name = :name returning name

-- Only what the caller has seen: times that have come due since would be forgotten.
-- name: resume_schedule
update forge.schedule
   set paused = false, paused_at = null, disabled = null, next_at = :next_at::timestamptz, pauses = :pauses::text::json
 where name = :name and revision = :revision::bigint and paused = :paused::boolean
   and paused_at is not distinct from :paused_at::timestamptz and disabled is not distinct from :disabled::text
returning name, pg_notify('forge.schedule', '')::text

-- name: disable_schedule
update forge.schedule set disabled = :reason::text where name = :name and revision = :revision::bigint returning name

-- Firing, first step: the schedule is still what it was when its slots were found, and nobody else fires it now.
-- name: lock_schedule
select next_at from forge.schedule
 where name = :name and revision = :revision::bigint and not paused and disabled is null for no key update

-- Second step: a slot that has fired before is not among those answered.
-- name: take_slots
insert into forge.schedule_slot (schedule, slot, job_id)
select :name, t.slot, t.job_id from unnest(:slots::timestamptz[], :jobs::uuid[]) t(slot, job_id)
on conflict do nothing returning slot

-- Third step, behind the jobs themselves.
-- name: skip_slot
update forge.schedule_slot set skipped = true, job_id = :job::uuid where schedule = :name and slot = :slot::timestamptz returning slot

-- name: advance_schedule
update forge.schedule
   set next_at = greatest(next_at, :next_at::timestamptz), last_slot = coalesce(:slot::timestamptz, last_slot),
       last_job = coalesce(:job::uuid, last_job), last_skipped = coalesce(:skipped::boolean, last_skipped)
 where name = :name returning name

-- name: schedule_slots
select slot, fired_at, job_id, skipped from forge.schedule_slot where schedule = :name order by slot desc limit :n::bigint

-- name: prune_slots
delete from forge.schedule_slot where (schedule, slot) in (
    select schedule, slot from forge.schedule_slot where fired_at < now() - make_interval(secs => :keep::float8)
     order by fired_at limit :n::bigint) returning slot

-- -- shares ------------------------------------------------------------------------------------------------------

-- Each queue as one of its pods sees it. How many others declare it is counted only where that matters, which is while
-- pods come and go.
-- Behind `with me as (…)`. Lists of queues stand as subqueries, which are hashed: to look a name up in an array of
-- 3,000 for each of 3,000 queues took a third of a core.
-- part: shares_seen
select q.name, q.max_workers, q.paused, q.name in (select unnest(queues) from me), s.workers, s.applied, s.running,
       case when s.workers is null or not r.rivals
            then (select count(*) from forge.pod o
                   where o.id <> me.id and o.reaped_at is null and o.capacity > 0 and q.name = any(o.queues))
            else 0 end, r.rivals, exists (select from forge.line_queue l where l.queue = q.name)
  from me cross join forge.queue q
  left join forge.share s on s.pod = me.id and s.queue = q.name
 cross join lateral (
    select exists (select from forge.share o join forge.pod p on p.id = o.pod
                    where o.queue = q.name and o.pod <> me.id and p.reaped_at is null) as rivals) r
 where q.name in (select unnest(:queues::text[])) or s.pod is not null

-- What an idle pod does every second: one row at least, unless the pod is gone.
-- name: beat_and_look
with me as (
    update forge.pod set beat_at = now() where id = :pod::int and reaped_at is null returning id, queues
)
select seen.* from me left join ({shares_seen}) seen on true

-- name: look_at_shares
with me as (
    select id, queues from forge.pod where id = :pod::int and reaped_at is null
)
{shares_seen}

-- What a pod goes by from now on. If the leader has given another word since it looked, it goes by what it did before.
-- name: report_shares
insert into forge.share as s (pod, queue, workers, applied, running)
select p.id, t.queue, t.workers, t.applied, t.running
  from forge.pod p cross join unnest(:queues::text[], :workers::int[], :applied::int[], :running::int[])
                              t(queue, workers, applied, running)
 where p.id = :pod::int and p.reaped_at is null order by t.queue for key share of p
on conflict (pod, queue) do update set running = excluded.running,
    applied = case when s.workers is not distinct from excluded.workers then excluded.applied else s.applied end
returning s.queue, s.applied

-- All that the leader needs, of one moment.
-- name: cluster
select (select coalesce(json_agg(json_build_array(name, max_workers)), '[]') from forge.queue),
       (select coalesce(json_agg(json_build_array(id, queues, capacity)), '[]') from forge.pod where reaped_at is null),
       (select coalesce(json_agg(json_build_array(s.pod, s.queue, s.workers, s.applied, s.running)), '[]')
          from forge.share s join forge.pod p on p.id = s.pod where p.reaped_at is null)

-- The leader's word, behind hold_term. A pod that is being removed is passed over: waiting for it could make two transactions wait for
-- each other.
-- name: assign_shares
with told as (
    select * from unnest(:pods::int[], :queues::text[], :workers::int[]) t(pod, queue, workers)
), live as materialized (
    select p.id from forge.pod p where p.id = any(:pods::int[]) and p.reaped_at is null for key share skip locked
), gone as (
    delete from forge.share s using told t where s.pod = t.pod and s.queue = t.queue and t.workers is null
)
insert into forge.share as s (pod, queue, workers, term)
select t.pod, t.queue, t.workers, :term::bigint
  from told t join live on live.id = t.pod where t.workers is not null order by t.pod, t.queue
on conflict (pod, queue) do update set workers = excluded.workers, term = excluded.term

-- Queues that no live pod serves, and whether jobs wait in them. Hops from queue to queue along the claim's indexes, and
-- over those that are served: of these there may be millions of dead entries.
-- name: undeclared_queues
with recursive served(queue) as materialized (
    select distinct s.queue collate "C" from forge.pod p cross join unnest(p.queues) s(queue) where p.reaped_at is null
), hop(queue) as (
    select '' collate "C"
    union all
    select case when s.queue is null
           then (select j.queue from forge.job j where j.line is null and j.status in ('pending', 'failed') and j.queue > h.queue
                  order by j.queue limit 1)
           else coalesce((select j.queue from forge.job j where j.line is null and j.status in ('pending', 'failed')
                             and j.queue > h.queue and j.queue < s.queue order by j.queue limit 1), s.queue) end
      from hop h cross join lateral (select min(served.queue) as queue from served where served.queue > h.queue) s
     where h.queue is not null
), waiting as materialized (
    select queue from hop where queue is not null
    union
    select l.queue from forge.line_queue l cross join lateral (
        select from forge.job j where j.queue = l.queue and j.line is not null and j.slot is null limit 1) w
)
select n.queue, exists (select from waiting w where w.queue = n.queue)
  from (select queue from waiting where queue <> '' union select name from forge.queue) n
 where not exists (select from served s where s.queue = n.queue) order by n.queue

-- -- budgets -----------------------------------------------------------------------------------------------------

-- The first step of every change. It is a statement of its own because the next one then sees what whoever had the lock
-- before has written: leases are other rows, and of those a statement that has waited would see what they were before.
-- name: lock_budget
select capacity, refill_per_sec, declared_capacity, declared_refill from forge.budget where scope = :scope for update

-- A lease made in the future: the clock was set back. Its time begins again, or it would last as long as that.
-- name: mend_leases
update forge.budget_lease set until = clock_timestamp() + (until - leased_at), leased_at = clock_timestamp()
 where scope = :scope and leased_at > clock_timestamp()

-- `forge.storage.budgets.refilled` in SQL: a bucket with its leases, and its tokens now.
-- part: filled
select b.*, s.live, s.sharers,
       greatest(0, least(b.capacity - s.live, b.refill_per_sec * extract(epoch from b.now - t.between)::float8
           + greatest(0, least(b.capacity - s.live - s.lapsed,
                               b.tokens + b.refill_per_sec * greatest(0, extract(epoch from t.between - b.at)::float8))))) as there
  from (select g.*, clock_timestamp() as now from forge.budget g) b
 cross join lateral (
    select coalesce(sum(l.tokens) filter (where l.until > b.now), 0)::float8 as live,
           coalesce(sum(l.tokens) filter (where l.until <= b.now), 0)::float8 as lapsed,
           max(l.until) filter (where l.until <= b.now) as lapsed_at,
           count(*) filter (where l.until > b.now) as sharers
      from forge.budget_lease l where l.scope = b.scope) s
 cross join lateral (select least(greatest(s.lapsed_at, b.at), b.now) as between) t

-- Settle, and lease more: behind the lock. What the pod says fits what it was leased, or its lease counts as spent.
-- name: lease_tokens
with bucket as materialized (
    select f.* from ({filled}) f where f.scope = :scope
), told as materialized (
    select b.*, coalesce(l.number < :number::bigint, true) as fresh, coalesce(fits.so, false) as fits,
           case when fits.so then l.tokens - (:spent::bigint - l.spent) - :held::bigint else 0 end as back,
           case when fits.so then :held::bigint else 0 end as kept,
           b.live - case when l.until > b.now then l.tokens else 0 end as others,
           b.sharers + case when l.until > b.now then 0 else 1 end as pods
      from bucket b
      left join forge.budget_lease l on l.scope = :scope and l.pod = :pod::int
      left join lateral (select l.until > b.now and l.drains = b.drains and :spent::bigint >= l.spent
                                and :held::bigint + :spent::bigint - l.spent <= l.tokens as so) fits on true
), settled as materialized (
    select t.*, greatest(0, least(t.capacity - t.others - t.kept, t.there + t.back)) as settled from told t
), given as materialized (
    select s.*, case when floor(s.settled + 1e-9) < :least::bigint then 0 else
           greatest(0, least(:want::bigint, floor(s.settled + 1e-9)::bigint,
                             greatest(:least::bigint, s.capacity / (2 * s.pods) - s.kept))) end as granted
      from settled s where s.fresh
), poured as (
    update forge.budget b set tokens = greatest(0, g.settled - g.granted), at = g.now from given g where b.scope = :scope
), ended as (
    delete from forge.budget_lease l using given g
     where l.scope = :scope and (case when l.pod = :pod::int then g.kept + g.granted + :want::bigint = 0 else l.until <= g.now end)
), leased as (
    insert into forge.budget_lease (scope, pod, tokens, spent, number, drains, leased_at, until)
    select :scope, :pod::int, g.kept + g.granted, :spent::bigint, :number::bigint, g.drains, g.now,
           g.now + make_interval(secs => :ttl::float8)
      from given g where g.kept + g.granted + :want::bigint > 0
    on conflict (scope, pod) do update set tokens = excluded.tokens, spent = excluded.spent, number = excluded.number,
        drains = excluded.drains, leased_at = excluded.leased_at, until = excluded.until
)
select capacity, refill_per_sec, kept, granted, greatest(0, settled - granted), pods from given

-- Bring a bucket up to now, by its limit so far: before that changes.
-- name: refill_budget
update forge.budget b set tokens = f.there, at = f.now from ({filled}) f where f.scope = b.scope and b.scope = :scope

-- name: set_budget
insert into forge.budget as b (scope, capacity, refill_per_sec, tokens) values (:scope, :capacity::bigint, :refill::float8, :capacity::bigint)
on conflict (scope) do update set capacity = excluded.capacity, refill_per_sec = excluded.refill_per_sec,
    tokens = least(b.tokens, excluded.capacity)

-- name: declare_budget
insert into forge.budget as b (scope, capacity, refill_per_sec, tokens, declared_capacity, declared_refill)
values (:scope, :capacity::bigint, :refill::float8, :capacity::bigint, :capacity::bigint, :refill::float8)
on conflict (scope) do update set capacity = excluded.capacity, refill_per_sec = excluded.refill_per_sec,
    tokens = least(b.tokens, excluded.capacity), declared_capacity = excluded.capacity, declared_refill = excluded.refill_per_sec
 where (b.declared_capacity, b.declared_refill) is distinct from (excluded.capacity, excluded.refill_per_sec)

-- name: declare_default
insert into forge.budget (scope, capacity, refill_per_sec, tokens)
values (:scope, :capacity::bigint, :refill::float8, :capacity::bigint) on conflict do nothing

-- Leases are left as they are: their pods may spend them until they hear of it, so they take room until then.
-- name: drain_budget
update forge.budget set tokens = 0, at = clock_timestamp(), drains = drains + 1 where scope = :scope
returning pg_notify('forge.drain', scope)::text

-- name: budgets
select f.scope, f.capacity, f.refill_per_sec, f.there,
       (select coalesce(json_agg(json_build_array(l.pod, l.tokens) order by l.pod), '[]')
          from forge.budget_lease l where l.scope = f.scope and l.until > f.now)
  from ({filled}) f order by f.scope

-- -- lines -------------------------------------------------------------------------------------------------------

-- name: line_queues
select queue from forge.line_queue

-- Pods take turns at the lines of a queue: the next statement sees what the one before has claimed.
-- name: lock_lines
select pg_advisory_xact_lock(hashtextextended('forge.lines ' || :queue::text, 0))

-- A step of the walk in claim_lines: the first waiting job of the next line, or of the next priority in the same line.
-- part: line_head
select j.line, j.priority, j.run_at, j.rate_limit, j.concurrency_key, j.concurrency from forge.job j
                where j.queue = :queue and j.line is not null and j.slot is null

-- Claim up to :n jobs of lines, behind lock_lines in the same transaction.
--
-- All jobs of a line share their budget and their concurrency key, so a line is open or closed as a whole. The ring walks
-- along the index from line to line, starting behind the line where the last claim ended, to :last_line, which is once around
-- at most, and :most steps at most (a step is one priority of one line: the due jobs of each are one range). A line's name begins with its
-- budget and its key: where one of these is closed, the walk goes on behind all lines that share it.
-- Open lines with due jobs get even shares of :n, in rounds: the first job of each line, the second of each and so on. Those of
-- one key get its free slots in that order, and those of one budget its tokens, so that neither is given twice.
-- The answer has one row at least: where the next claim starts, whether the walk came around, which budgets were empty,
-- whether any line was closed or may be now, how many had due jobs, whether any had a whole share of them, and then the claim and its budget, or nulls.
-- `offset 0` has each of these found once a step, and not once for each time that it is named.
-- A slot is for up to :behind jobs, whoever claims them running one after the other. The last one has it in its row, and the
-- others, which are to end before, have 0: as long as one of them may run it is taken. The key and the slot are behind the budget.
-- A slot is on disk before anybody hears of it: a crash of the database that took it back would give it to somebody else
-- while its job runs. A claim that took none need not wait for the disk, as in `claim`.
-- The next claim starts before the first line that was open and got nothing, for which there was no room; else behind the last open one.
-- name: claim_lines
with recursive gate as materialized (
    select from (select) one
     where (select not q.paused and coalesce(q.throttled_until <= now(), true) from forge.queue q where q.name = :queue)
           is not false
       and exists (select from forge.pod where id = :claim::bigint >> 32 and reaped_at is null for key share)
       and (select j.run_at from forge.job j where j.queue = :queue and j.line is not null and j.slot is null
             order by j.run_at limit 1) <= now()
), ring(i, line, priority, wrapped, next_line, next_priority, scope, tokens, key, most, free, open, due) as (
    select 0, :after_line::text collate "C", :after_priority::smallint,
           (:after_line::text collate "C", :after_priority::smallint) < (:last_line::text, :last_priority::smallint),
           :after_line::text collate "C", :after_priority::smallint, null::text collate "C", 0, null::text collate "C", null::smallint, null::int[], false, false
      from gate
    union all
    select r.i + 1, h.line, h.priority, r.wrapped or h.over,
           case when o.open then h.line
                when t.tokens = 0 then split_part(h.line, '|', 1) || '}'
                else split_part(h.line, '|', 1) || '|' || split_part(h.line, '|', 2) || '}' end,
           case when o.open then h.priority else 32767::smallint end,
           h.rate_limit, t.tokens, h.concurrency_key, h.concurrency, k.free, o.open, o.open and h.run_at <= now()
      from ring r
     cross join lateral (
        select n.*, false as over from ({line_head}
                  and not r.wrapped and (j.line, j.priority) > (r.next_line, r.next_priority)
                order by j.line, j.priority, j.run_at, j.id limit 1) n
        union all
        select n.*, false from ({line_head}
                  and r.wrapped and (j.line, j.priority) > (r.next_line, r.next_priority)
                  and (j.line, j.priority) <= (:last_line::text, :last_priority::smallint)
                order by j.line, j.priority, j.run_at, j.id limit 1) n
        union all
        select n.*, true from ({line_head}
                  and not r.wrapped and (j.line, j.priority) <= (:last_line::text, :last_priority::smallint)
                order by j.line, j.priority, j.run_at, j.id limit 1) n
        limit 1) h
     cross join lateral (
        select case when h.rate_limit is null or :unbounded::boolean then :n::int
                    else coalesce((select b.tokens from unnest(:scopes::text[], :allowed::int[]) b(scope, tokens)
                                    where b.scope = h.rate_limit limit 1), 0) end as tokens offset 0) t
     cross join lateral (
        select case when h.concurrency_key is null then null
                    when h.concurrency_key = r.key and h.concurrency = r.most then r.free
                    else (select array(select s from generate_series(1, h.concurrency::int) s where s <> all(g.slots)
                                        limit greatest(h.concurrency - cardinality(g.slots), 0))
                            from (select array(select s.slot::int from forge.job s
                                                where s.concurrency_key = h.concurrency_key and s.slot > 0) as slots offset 0) g)
                    end as free offset 0) k
     cross join lateral (select t.tokens > 0 and coalesce(cardinality(k.free) > 0, true) as open offset 0) o
     where r.i < :most::int
), part as materialized (
    select r.*, s.share from ring r
     cross join (select ceil(:n::float8 / greatest(count(distinct line), 1))::int as share from ring where due) s
     where r.due
), found as materialized (
    select p.i, p.line, p.scope, p.tokens, p.key, p.free, p.share, d.address, d.size, d.priority,
           row_number() over (partition by p.line order by d.priority, d.run_at, d.id) as round
      from part p cross join lateral (
        select j.ctid as address, {payload_size} as size, j.priority, j.run_at, j.id from forge.job j
         where j.queue = :queue and j.line is not null and j.slot is null and j.line = p.line and j.priority = p.priority
           and j.run_at <= now() and j.status in ('pending', 'failed')
         order by j.run_at, j.id limit least(p.share, p.tokens, cardinality(p.free) * :behind::int)
         for update skip locked) d
), ranked as (
    select f.*, row_number() over (partition by f.key order by f.round, f.priority, f.i) as of_key,
           row_number() over (partition by f.scope order by f.round, f.priority, f.i) as of_scope
      from found f where f.round <= f.share
), chosen as materialized (
    select g.*, case when g.seat is not null and row_number() over (partition by g.key, g.seat order by g.of_key desc) = 1
                     then g.seat else 0 end as slot
      from (
        select r.address, r.i, r.line, r.scope, r.round, r.priority, r.key, r.of_key,
               r.free[(r.of_key - 1) % cardinality(r.free) + 1] as seat,
               sum(r.size) over (order by r.round, r.priority, r.i rows unbounded preceding) - r.size as before
          from ranked r where (r.key is null or r.of_key <= cardinality(r.free) * :behind::int)
                          and (r.scope is null or r.of_scope <= r.tokens)
         order by r.round, r.priority, r.i limit :n::bigint) g
     where g.before < :most_bytes::bigint
), claimed as (
    update forge.job j set status = 'in_progress', attempts = j.attempts + 1, claim = :claim::bigint, claimed_at = now(),
                           slot = c.slot
      from chosen c where j.ctid = c.address
    returning j.priority, j.run_at, j.id, j.kind, j.payload, j.attempts, j.max_attempts, j.timeout, j.keep_result,
              j.dedupe_key, c.scope, c.round, c.i, case when :behind::int > 1 then c.key end as key, c.seat
), last as (
    select coalesce((select min(f.i) - 1 from found f where f.line not in (select line from chosen)),
                    case when max(r.i) < :most::int then max(r.i) filter (where r.open or r.i = 0) else max(r.i) end) as i,
           coalesce(max(r.i) < :most::int, true) as around,
           array_agg(distinct r.scope) filter (where r.scope is not null and r.tokens = 0) as empty,
           coalesce(bool_or(r.i > 0 and (not r.open or r.due and (r.key is not null or r.scope is not null))), false) as closed
      from ring r
)
select r.line, r.priority, l.around, l.empty, l.closed, (select count(distinct line) from found)::int,
       (select coalesce(bool_or(f.round >= f.share), false) from found f), c.priority, c.run_at, c.id, c.kind, c.payload, c.attempts, c.max_attempts, c.timeout, c.keep_result, c.dedupe_key, c.scope, c.key, c.seat
  from last l left join ring r on r.i = l.i left join claimed c on true
 where (select set_config('synchronous_commit', case when not exists (select from chosen where slot > 0) then 'off'
                                                     when s.now = 'off' then 'on' else s.now end, true)
          from current_setting('synchronous_commit') s(now)) is not null
 order by c.round, c.priority, c.i

-- A slot from one job of a chain to another.
-- name: let_go_of_slot
with held as materialized (
    select id, slot from forge.job where id = :id::uuid and claim = :claim::bigint and slot > 0 for update
)
update forge.job j set slot = 0 from held where j.id = held.id returning held.slot

-- name: take_slot
update forge.job set slot = :slot::smallint where id = :id::uuid and claim = :claim::bigint and slot = 0 returning slot

-- -- metrics -----------------------------------------------------------------------------------------------------

-- part: this_minute
date_trunc('minute', now())

-- part: counters
completed, failed, throttled, snoozed, crashed, cancelled, dead, reaped

-- part: gauges
pending, scheduled, in_flight, retrying, dead_jobs, oldest, estimated

-- A pod's report: its number is taken first, and all the rest follows from that it was.
-- name: write_metrics
with fresh as (
    insert into forge.metric_writer as w (writer, number) values (:writer, :number::bigint)
    on conflict (writer) do update set number = excluded.number, at = now() where w.number < excluded.number
    returning 1
), parts as (
    insert into forge.metric_part as p (minute, pod, queue, {counters}, latency, run_time)
    select {this_minute}, :pod::int, t.* from fresh cross join jsonb_to_recordset(:parts::text::jsonb)
        t(queue text, completed bigint, failed bigint, throttled bigint, snoozed bigint, crashed bigint, cancelled bigint,
          dead bigint, reaped bigint, latency jsonb, run_time jsonb) order by t.queue
    on conflict (minute, pod, queue) do update set completed = p.completed + excluded.completed,
        failed = p.failed + excluded.failed, throttled = p.throttled + excluded.throttled,
        snoozed = p.snoozed + excluded.snoozed, crashed = p.crashed + excluded.crashed,
        cancelled = p.cancelled + excluded.cancelled, dead = p.dead + excluded.dead, reaped = p.reaped + excluded.reaped,
        latency = forge.add_counts(p.latency, excluded.latency), run_time = forge.add_counts(p.run_time, excluded.run_time)
), own as (
    insert into forge.metric_pod as m (minute, pod, host, pid, workers, connections, master_cpu, zygote_cpu, workers_cpu,
                                       master_rss, zygote_rss, workers_rss, master_pss, zygote_pss, workers_pss, claims, finalizes, beats)
    select {this_minute}, :pod::int, v.* from fresh cross join jsonb_to_record(:vitals::text::jsonb)
        v(host text, pid int, workers int, connections int, master_cpu float8, zygote_cpu float8, workers_cpu float8,
          master_rss bigint, zygote_rss bigint, workers_rss bigint, master_pss bigint, zygote_pss bigint, workers_pss bigint,
          claims jsonb, finalizes jsonb, beats jsonb) where v.host is not null
    on conflict (minute, pod) do update set workers = greatest(m.workers, excluded.workers),
        connections = greatest(m.connections, excluded.connections),
        master_cpu = coalesce(m.master_cpu + excluded.master_cpu, m.master_cpu, excluded.master_cpu),
        zygote_cpu = coalesce(m.zygote_cpu + excluded.zygote_cpu, m.zygote_cpu, excluded.zygote_cpu),
        workers_cpu = coalesce(m.workers_cpu + excluded.workers_cpu, m.workers_cpu, excluded.workers_cpu),
        master_rss = greatest(m.master_rss, excluded.master_rss), zygote_rss = greatest(m.zygote_rss, excluded.zygote_rss),
        workers_rss = greatest(m.workers_rss, excluded.workers_rss), master_pss = greatest(m.master_pss, excluded.master_pss),
        zygote_pss = greatest(m.zygote_pss, excluded.zygote_pss), workers_pss = greatest(m.workers_pss, excluded.workers_pss),
        claims = forge.add_counts(m.claims, excluded.claims), finalizes = forge.add_counts(m.finalizes, excluded.finalizes),
        beats = forge.add_counts(m.beats, excluded.beats)
)
select exists (select from fresh), extract(epoch from now())::float8

-- Jobs by the time in their ids, wherever they are now: in one statement, for they move. The last id by queue says how far a
-- count came that was cut short (there is no max of uuids before PostgreSQL 18).
-- name: enqueued_between
select false, queue, count(*), max(id::text) from (
    select id, queue from forge.job where id >= :first::uuid and id < :last::uuid order by id limit :most::bigint) j group by queue
union all
select true, queue, count(*), max(id::text) from (
    select id, queue from forge.job_history where id >= :first::uuid and id < :last::uuid order by id limit :most::bigint) h group by queue

-- Where each queue begins: of every priority the first job, in whatever state, and how long the first that waits has been
-- due. A look starts where the one before found the first jobs, as the claim starts at its marks. Of all lines together
-- there is one row, without a priority.
-- name: fronts
with recursive mark as materialized (select {mark_columns} from {marks}), hop(queue) as (
    select '' collate "C"
    union all
    select case when m.queue is null
           then (select j.queue from forge.job j where j.line is null and j.queue > h.queue order by j.queue limit 1)
           else coalesce((select j.queue from forge.job j where j.line is null and j.queue > h.queue and j.queue < m.queue
                           order by j.queue limit 1), m.queue) end
      from hop h cross join lateral (select min(mark.queue collate "C") as queue from mark where mark.queue > h.queue) m
     where h.queue is not null
), level(queue, priority) as (
    select h.queue, -32769 from hop h where h.queue <> ''
    union all
    select l.queue, {next_level} from level l cross join lateral {next_mark} where l.priority is not null
)
select l.queue, l.priority, f.run_at, f.id, extract(epoch from now() - w.run_at)::float8, now()
  from level l left join mark m on m.queue = l.queue and m.priority = l.priority
  left join lateral (
    select j.run_at, j.id from forge.job j where j.queue = l.queue and j.line is null and j.priority = l.priority
       and (j.run_at, j.id) >= (coalesce(m.run_at, '-infinity'), coalesce(m.id, '00000000-0000-0000-0000-000000000000'))
     order by j.run_at, j.id limit 1) f on true
  left join lateral (
    select j.run_at from forge.job j
     where j.queue = l.queue and j.line is null and j.status in ('pending', 'failed') and j.priority = l.priority
       and (j.run_at, j.id) >= (f.run_at, f.id)
     order by j.run_at, j.id limit 1) w on true
 where l.priority > -32769
union all
select q.queue, null, null, null, extract(epoch from now() - d.run_at)::float8, now()
  from forge.line_queue q cross join lateral (
    select j.run_at from forge.job j where j.queue = q.queue and j.line is not null and j.slot is null
     order by j.run_at limit 1) d

-- Each queue from there on, which are the marks here: what runs was first in line once, so it is found there, whatever
-- waits behind it.
-- name: standing
with mark as materialized (select {mark_columns} from {marks})
select n.queue, f.pending, f.scheduled, f.in_flight, f.retrying, f.seen
  from (select queue from mark union select queue from forge.line_queue) n cross join lateral (
    select count(*) filter (where j.status = 'pending' and j.run_at <= now()) as pending,
           count(*) filter (where j.status = 'pending' and j.run_at > now()) as scheduled,
           count(*) filter (where j.status = 'in_progress') as in_flight,
           count(*) filter (where j.status = 'failed') as retrying, count(*) as seen
      from ((select p.status, p.run_at from mark m cross join lateral (
                select status, run_at from forge.job
                 where queue = m.queue and line is null and priority = m.priority and (run_at, id) >= (m.run_at, m.id)
                 order by run_at, id limit :most::bigint) p
              where m.queue = n.queue limit :most::bigint)
            union all
            (select status, run_at from forge.job where queue = n.queue and line is not null and slot is null
              order by run_at limit :most::bigint)
            union all
            (select status, run_at from forge.job where queue = n.queue and slot is not null limit :most::bigint)) j) f
 where f.seen > 0

-- name: pages_of_jobs
select pg_relation_size('forge.job') / current_setting('block_size')::bigint

-- name: sample_standing
select queue, count(*) filter (where status = 'pending' and run_at <= now()),
       count(*) filter (where status = 'pending' and run_at > now()), count(*) filter (where status = 'failed')
  from forge.job tablesample system (:percent::float8) group by queue

-- name: dead_jobs
select queue, count(*) from (
    select queue from forge.job_history where status in ('dead', 'cancelled') and status = 'dead' limit :most::bigint) d group by queue

-- name: database_figures
select pg_database_size(current_database()), pg_total_relation_size('forge.job'), pg_total_relation_size('forge.job_history'),
       pg_stat_get_dead_tuples('forge.job'::regclass), pg_stat_get_dead_tuples('forge.job_history'::regclass)

-- The leader's writes, each behind hold_term.
-- name: record_standing
insert into forge.metric as m (minute, queue, {gauges})
select to_timestamp(:minute::float8), t.* from jsonb_to_recordset(:rows::text::jsonb)
    t(queue text, pending bigint, scheduled bigint, in_flight bigint, retrying bigint, dead_jobs bigint, oldest float8,
      estimated boolean) order by t.queue
on conflict (minute, queue) do update set pending = excluded.pending, scheduled = excluded.scheduled,
    in_flight = excluded.in_flight, retrying = excluded.retrying, dead_jobs = excluded.dead_jobs, oldest = excluded.oldest,
    estimated = excluded.estimated

-- name: record_enqueued
insert into forge.metric as m (minute, queue, enqueued)
select to_timestamp(t.minute), t.queue, t.enqueued from jsonb_to_recordset(:rows::text::jsonb)
    t(minute float8, queue text, enqueued bigint) order by t.minute, t.queue
on conflict (minute, queue) do update set enqueued = greatest(m.enqueued, excluded.enqueued)

-- name: record_database
insert into forge.metric_database as d (minute, size, job_size, history_size, job_dead, history_dead)
values (to_timestamp(:minute::float8), :size::bigint, :job_size::bigint, :history_size::bigint, :job_dead::bigint, :history_dead::bigint)
on conflict (minute) do update set size = excluded.size, job_size = excluded.job_size, history_size = excluded.history_size,
    job_dead = excluded.job_dead, history_dead = excluded.history_dead

-- One minute at a time. Rows are deleted and added in one statement; who comes second waits for the first and finds none.
-- name: roll_up_metrics
with gone as (
    delete from forge.metric_part
     where minute = (select min(minute) from forge.metric_part) and minute <= now() - make_interval(secs => 60 + :older::float8)
    returning *
), late as (
    select s.queue, jsonb_object_agg(s.key, s.n) as counts from (
        select g.queue, e.key, sum(e.value::bigint) as n from gone g cross join lateral jsonb_each_text(g.latency) e
         group by g.queue, e.key) s group by s.queue
), ran as (
    select s.queue, jsonb_object_agg(s.key, s.n) as counts from (
        select g.queue, e.key, sum(e.value::bigint) as n from gone g cross join lateral jsonb_each_text(g.run_time) e
         group by g.queue, e.key) s group by s.queue
), added as (
    insert into forge.metric as m (minute, queue, {counters}, latency, run_time)
    select g.minute, g.queue, sum(g.completed), sum(g.failed), sum(g.throttled), sum(g.snoozed), sum(g.crashed),
           sum(g.cancelled), sum(g.dead), sum(g.reaped),
           coalesce((select l.counts from late l where l.queue = g.queue), '{}'),
           coalesce((select r.counts from ran r where r.queue = g.queue), '{}')
      from gone g group by g.minute, g.queue order by g.minute, g.queue
    on conflict (minute, queue) do update set completed = m.completed + excluded.completed,
        failed = m.failed + excluded.failed, throttled = m.throttled + excluded.throttled,
        snoozed = m.snoozed + excluded.snoozed, crashed = m.crashed + excluded.crashed,
        cancelled = m.cancelled + excluded.cancelled, dead = m.dead + excluded.dead, reaped = m.reaped + excluded.reaped,
        latency = forge.add_counts(m.latency, excluded.latency), run_time = forge.add_counts(m.run_time, excluded.run_time)
)
select count(*) from gone

-- name: prune_metrics
with a as (
    delete from forge.metric where (minute, queue) in (
        select minute, queue from forge.metric where minute < now() - make_interval(secs => :keep::float8)
         order by minute, queue limit :n::bigint) returning 1
), b as (
    delete from forge.metric_pod where (minute, pod) in (
        select minute, pod from forge.metric_pod where minute < now() - make_interval(secs => :keep::float8)
         order by minute, pod limit :n::bigint) returning 1
), c as (
    delete from forge.metric_database where minute in (
        select minute from forge.metric_database where minute < now() - make_interval(secs => :keep::float8)
         order by minute limit :n::bigint) returning 1
), d as (
    delete from forge.metric_writer where writer in (
        select writer from forge.metric_writer where at < now() - make_interval(secs => :keep::float8) limit :n::bigint) returning 1
)
select (select count(*) from a) + (select count(*) from b) + (select count(*) from c) + (select count(*) from d)

-- part: in_range
minute >= to_timestamp(:since::float8) and minute < to_timestamp(:until::float8)

-- part: step_of
floor(extract(epoch from minute)::float8 / :step::float8) * :step::float8 as at

-- What has been added up and what has not: a row is in exactly one of the two at any moment.
-- name: read_metrics
with seen as materialized (
    select {step_of}, minute, queue, {counters}, latency, run_time, enqueued, {gauges} from forge.metric
     where {in_range} and (:queue::text is null or queue = :queue::text)
    union all
    select {step_of}, minute, queue, {counters}, latency, run_time, null, null, null, null, null, null, null, null
      from forge.metric_part where {in_range} and (:queue::text is null or queue = :queue::text)
), late as (
    select s.at, s.queue, jsonb_object_agg(s.key, s.n) as counts from (
        select r.at, r.queue, e.key, sum(e.value::bigint) as n from seen r cross join lateral jsonb_each_text(r.latency) e
         group by r.at, r.queue, e.key) s group by s.at, s.queue
), ran as (
    select s.at, s.queue, jsonb_object_agg(s.key, s.n) as counts from (
        select r.at, r.queue, e.key, sum(e.value::bigint) as n from seen r cross join lateral jsonb_each_text(r.run_time) e
         group by r.at, r.queue, e.key) s group by s.at, s.queue
), stood as (
    select distinct on (at, queue) at, queue, {gauges} from seen where pending is not null order by at, queue, minute desc
), sums as (
    select at, queue, sum(completed)::bigint as completed, sum(failed)::bigint as failed, sum(throttled)::bigint as throttled,
           sum(snoozed)::bigint as snoozed, sum(crashed)::bigint as crashed, sum(cancelled)::bigint as cancelled,
           sum(dead)::bigint as dead, sum(reaped)::bigint as reaped, sum(enqueued)::bigint as enqueued from seen group by at, queue
)
select at, queue, {counters}, late.counts::json, ran.counts::json, enqueued, {gauges}
  from sums left join late using (at, queue) left join ran using (at, queue) left join stood using (at, queue) order by at, queue

-- name: read_pod_metrics
with seen as materialized (
    select {step_of}, * from forge.metric_pod where {in_range}
), spans as (
    select s.at, s.pod, jsonb_object_agg(s.key, s.n) filter (where s.what = 0) as claims,
           jsonb_object_agg(s.key, s.n) filter (where s.what = 1) as finalizes,
           jsonb_object_agg(s.key, s.n) filter (where s.what = 2) as beats from (
        select r.at, r.pod, t.what, e.key, sum(e.value::bigint) as n
          from seen r cross join lateral (values (0, r.claims), (1, r.finalizes), (2, r.beats)) t(what, counts)
         cross join lateral jsonb_each_text(t.counts) e group by r.at, r.pod, t.what, e.key) s group by s.at, s.pod
), sums as (
    select at, pod, min(host) as host, min(pid) as pid, max(workers) as workers, max(connections) as connections,
           sum(master_cpu) as master_cpu, sum(zygote_cpu) as zygote_cpu, sum(workers_cpu) as workers_cpu,
           max(master_rss) as master_rss, max(zygote_rss) as zygote_rss, max(workers_rss) as workers_rss,
           max(master_pss) as master_pss, max(zygote_pss) as zygote_pss, max(workers_pss) as workers_pss
      from seen group by at, pod
)
select s.*, p.claims::json, p.finalizes::json, p.beats::json from sums s left join spans p using (at, pod) order by at, pod

-- name: read_database_metrics
select distinct on (s.at) s.at, s.size, s.job_size, s.history_size, s.job_dead, s.history_dead
  from (select {step_of}, * from forge.metric_database where {in_range}) s order by s.at, s.minute desc

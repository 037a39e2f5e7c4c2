-- One job without a key, the commonest call: with the arrays of `enqueue` below it took 1.9 ms, with this 0.8, most of
-- it the commit.
-- If an idle pod has offered to take the next job of the queue, this one is stored as claimed by it and sent to it in
-- the notification: a wake-up, a claim and its answer less (see forge/master/queues/offers.py), for 0.1 ms more here.
-- What makes a claim safe makes this safe: the same token, and the same lock on the pod's row. If the id is known, the
-- offer is gone for nothing, and is made again some day.
-- name: enqueue_one
with offer as materialized (
    delete from forge.offer where ctid = (
        select o.ctid from forge.offer o
         where :push::boolean and o.queue = :queue and :run_at::float8 is null and :delay::float8 = 0
           -- a notification has room for 8000 bytes
           and octet_length(:payload::text) + octet_length(:kind::text) < 6000
           and (select not q.paused and coalesce(q.throttled_until <= now(), true)
                  from forge.queue q where q.name = :queue) is not false
           and exists (select from forge.pod p where p.id = o.claim >> 32 and p.reaped_at is null
                          and p.beat_at > now() - make_interval(secs => o.beat_within) for key share)
         order by o.number limit 1 for update skip locked)
    returning claim, channel
)
insert into forge.job as j (id, queue, kind, payload, priority, run_at, max_attempts, timeout, keep_result, tags,
                            status, attempts, claim, claimed_at)
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
copy forge.job (id, queue, kind, payload, priority, max_attempts, timeout, keep_result, tags, run_at)
from stdin (format binary)

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

-- Whether a bulk stored a job again that had ended: asked in the same transaction after the COPY, so a job that ended
-- meanwhile is seen. A bulk's ids were made together, so history has hardly ever anything in their range.
-- name: ended_between
select exists (select from forge.job_history where id between :first::uuid and :last::uuid)

-- name: ended_already
select exists (select from forge.job_history where id = any(:ids::uuid[]))

-- A taken key with on_conflict: change the job that has it, if it has not started.
-- name: replace_payload
update forge.job set payload = :payload::text::json where id = :id::uuid and status in ('pending', 'failed')
returning id

-- name: push_run_at
update forge.job set run_at = case when :run_at::float8 is null then now() + make_interval(secs => :delay::float8)
                                   else to_timestamp(:run_at::float8) end
 where id = :id::uuid and status = 'pending' returning id

-- Every statement forge sends to SQLite: PostgreSQL's, in small steps. There is one writer at a time, inside BEGIN
-- IMMEDIATE, so what a step has read still holds in the next; and a step costs microseconds, not a round trip.
-- :now is microseconds since 1970, read once per transaction.
--
-- A batch of claims comes as two parameters: :tokens, a JSON array, and :ids, the 16-byte ids one after the other. At
-- batch 1000 ending a claim takes 5.5 µs that way, and 9 with a prepared statement run once per row.
-- `indexed by` and `cross join` fix the plan of the hot statements whatever the statistics say; a unary plus keeps a
-- column's index out of it.

-- Plain columns: SQLite 3.40, which Python may bring, answers 1 to every `x is not null` in a RETURNING clause.
-- part: claim_columns
priority, run_at, id, kind, payload, attempts, max_attempts, timeout, keep_result, dedupe_key

-- part: job_columns
id, queue, kind, status, payload, priority, attempts, max_attempts, crashes, timeout, run_at, enqueued_at, claimed_at,
dedupe_key, unique_for, keep_result, tags, errors, cancel_requested_at, claim >> 32, line, rate_limit, concurrency_key, concurrency

-- part: filter
id < :before
   and (:statuses is null or status in (select value from json_each(:statuses)))
   and (:queues is null or queue in (select value from json_each(:queues)))
   and (:kinds is null or kind in (select value from json_each(:kinds)))
   and (:tag is null or exists (select 1 from json_each(tags) where value = :tag))

-- part: kept
id, run_at, enqueued_at, claimed_at, cancel_requested_at, claim, timeout, unique_for, keep_result, priority, attempts,
max_attempts, queue, kind, payload, dedupe_key, tags, line, rate_limit, concurrency_key, concurrency

-- part: batch
json_each(:tokens) t cross join forge_job j on j.id = substr(:ids, t.key * 16 + 1, 16) and +j.claim = t.value

-- part: queue_columns
name, max_workers, paused, backoff_enabled, backoff_base_seconds, backoff_max_seconds, throttle, retain_done_days,
retain_dead_days, throttle_attempts, throttled_until

-- The claim hops from one priority to the next: within a priority the due jobs are one range, so a million jobs
-- scheduled for next year in front of the due ones of a later priority are never read.
-- name: next_priority
select priority from forge_job indexed by forge_job_claim
 where queue = :queue and line is null and status in ('pending', 'failed') and priority > :priority order by priority limit 1

-- The same for a claim: none for a pod that is no more, or of a queue that is paused or cools down.
-- part: level
select priority from forge_job indexed by forge_job_claim
 where queue = :queue and line is null and status in ('pending', 'failed') and priority > :priority
   and exists (select 1 from forge_pod where id = :pod)
   and not exists (select 1 from forge_queue where name = :queue and (paused or throttled_until > :now))
 order by priority limit 1

-- name: next_claimable
{level}

-- part: claimable
from forge_job indexed by forge_job_claim
     where queue = :queue and line is null and status in ('pending', 'failed') and priority = ({level}) and run_at <= :now
     order by run_at, id limit :n

-- Claim up to :n due plain jobs of the next priority after :priority that has any. There is no low-water mark here: SQLite takes a claimed job out of the index
-- at once, so a scan from the start never meets a dead entry. Rows are found again by rowid: by id it took 1 µs a job more.
-- name: claim
update forge_job set status = 'in_progress', attempts = attempts + 1, claim = :token, claimed_at = :now
 where rowid in (
    select rowid {claimable})
returning {claim_columns}

-- Bytes that the payloads of these jobs have: of all together, and of each. SQLite 3.43 knows them without reading the
-- payloads (0.1 µs a job); before that it does not.
-- name: weigh
select sum(bytes) from (select octet_length(payload) as bytes {claimable})

-- name: weigh_by_reading
select sum(bytes) from (select length(cast(payload as blob)) as bytes {claimable})

-- name: weigh_each
select length(cast(payload as blob)) {claimable}

-- The hot ending, in three steps: where the rows are (a claim whose token is stale is not found), copy them, remove
-- them. Finding them by id once and by rowid twice takes 4.8 µs a job, by id twice 5.2.
-- With each comes whether any queue has been throttled, which is found out once: a statement less for those that were not.
-- name: rowids
select j.rowid, exists (select 1 from forge_queue where throttle_attempts > 0) from {batch}

-- name: finalize_done
insert into forge_job_history ({kept}, status, crashes, errors, finished_at)
select {kept}, 'done', crashes, errors, :now from forge_job where rowid in (select value from json_each(:rowids))

-- name: remove_batch
delete from forge_job where rowid in (select value from json_each(:rowids))

-- name: keep_result
update forge_job_history set result = iif(keep_result is null, null, :result) where id = :id

-- Which claims of a batch are still their owner's.
-- name: ours
select j.id, j.claim from {batch}

-- A success well past a throttle window: the far end has recovered, the curve starts over.
-- name: warm_up
update forge_queue set throttle_attempts = 0, throttled_until = null
 where name in (select value from json_each(:queues)) and throttle_attempts > 0 and throttled_until <= :now - :grace

-- What decides how any other claim ends.
-- name: claimed_job
select attempts, max_attempts, crashes, cancel_requested_at is not null, errors, queue, run_at, enqueued_at
  from forge_job where id = :id and +claim = :token

-- name: give_back
update forge_job set status = :status, run_at = :run_at, attempts = :attempts, crashes = :crashes, errors = :errors, claim = null,
               claimed_at = null, progress = null, slot = null
 where id = :id

-- name: refund
update forge_job set attempts = attempts - 1 where id = :id

-- name: end_job
insert into forge_job_history ({kept}, status, crashes, errors, finished_at)
select {kept}, :status, :crashes, :errors, :now from forge_job where id = :id

-- name: remove_job
delete from forge_job where id = :id

-- Give back the key of a job that has ended: at once, or after unique_for.
-- name: free_key
delete from forge_job_key where job_id = :id
   and key = (select dedupe_key from forge_job_history where id = :id and unique_for is null)

-- name: hold_key
update forge_job_key set held_until = (select finished_at + unique_for * 1000000 from forge_job_history where id = :id)
 where job_id = :id and key = (select dedupe_key from forge_job_history where id = :id and unique_for is not null)

-- name: ensure_queue
insert into forge_queue (name) values (:queue) on conflict do nothing

-- The first throttle of a window sets the window and advances the counter; the rest of the window changes nothing.
-- :hint is the handler's own wish, which only a queue with throttle = 'hint' grants; there, a handler may ask it for its
-- job alone. The counter is capped at 30, so the shift cannot overflow.
-- name: cool_down
update forge_queue set throttle_attempts = min(throttle_attempts + 1, 30),
       throttled_until = :now + cast(1000000 * case
           when throttle = 'hint' and :hint is not null then :hint
           when not backoff_enabled then 60
           else min(backoff_base_seconds * (1 << throttle_attempts), backoff_max_seconds) end as integer)
 where name = :queue and coalesce(throttled_until <= :now, true) and not (throttle = 'hint' and :job_only)

-- name: backoff_of
select min(backoff_base_seconds * (1 << min(:attempts, 30)), backoff_max_seconds) from forge_queue where name = :queue and backoff_enabled

-- name: throttle_of
select throttle, throttled_until from forge_queue where name = :queue

-- Storing jobs. These run on connections of the caller's too, so each starts with the word INSERT or UPDATE: that is
-- how Python's sqlite3 knows to begin a transaction, and a transaction that starts by writing has the newest state,
-- while one that starts by reading may be refused its first write (SQLITE_BUSY_SNAPSHOT).
-- An id that is known, live or ended, is left as it is.
-- name: insert_job
insert into forge_job (id, queue, kind, payload, priority, run_at, enqueued_at, max_attempts, timeout, dedupe_key, unique_for,
                 keep_result, tags)
select :id, :queue, :kind, :payload, :priority, :run_at, :now, :max_attempts, :timeout, :dedupe_key, :unique_for,
       :keep_result, :tags
 where not exists (select 1 from forge_job_history where id = :id)
on conflict (id) do nothing

-- The same for one in a line, whose queue is marked as having lines.
-- name: insert_lined_job
insert into forge_job (id, queue, kind, payload, priority, run_at, enqueued_at, max_attempts, timeout, dedupe_key, unique_for,
                 keep_result, tags, line, rate_limit, concurrency_key, concurrency)
select :id, :queue, :kind, :payload, :priority, :run_at, :now, :max_attempts, :timeout, :dedupe_key, :unique_for,
       :keep_result, :tags, :line, :rate_limit, :concurrency_key, :concurrency
 where not exists (select 1 from forge_job_history where id = :id)
on conflict (id) do nothing

-- name: mark_lines
insert into forge_line_queue (queue) values (:queue) on conflict do nothing

-- Answers a row if the key was won: it was free, or kept for a job that ended long enough ago.
-- name: take_key
insert into forge_job_key (key, job_id)
select :key, :id where not exists (select 1 from forge_job where id = :id) and not exists (select 1 from forge_job_history where id = :id)
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

-- name: set_wake
update forge_queue set wake = :wake where name = :queue and wake <> :wake

-- name: register_pod
insert into forge_pod (name, host, pid, queues, started_at, beat_at, capacity, label)
values (:name, :host, :pid, :queues, :now, :now, :capacity, :label)
returning id

-- name: beat
update forge_pod set beat_at = :now where id = :pod

-- How far a running job is.
-- name: progress
update forge_job set progress = :progress where id = :id and +claim = :token

-- The earliest job of one priority; see next_priority.
-- name: first_due
select run_at from forge_job indexed by forge_job_claim
 where queue = :queue and line is null and status in ('pending', 'failed') and priority = :priority order by run_at, id limit 1

-- The earliest job of all lines.
-- name: first_lined_due
select run_at from forge_job indexed by forge_job_line_due
 where queue = :queue and line is not null and status in ('pending', 'failed') order by run_at limit 1

-- name: standing
select paused, throttled_until from forge_queue where name = :queue

-- name: serve_queues
update forge_pod set queues = :queues, capacity = :capacity where id = :pod

-- name: deregister_pod
delete from forge_pod where id = :pod

-- name: pods
select id, name, host, pid, queues, started_at, beat_at, capacity, label from forge_pod order by id

-- What an ending writes, to be undone: whether the file takes any.
-- name: try_history
insert into forge_job_history (id, run_at, enqueued_at, finished_at, timeout, status, priority, attempts, max_attempts, crashes,
                         queue, kind, payload, result)
values (randomblob(16), 0, 0, 0, 0, 'done', 0, 0, 0, 0, '', '', 'null', :result)

-- The claims of one pod, for release: its tokens are one range.
-- name: claims_of_pod
select id, claim, dedupe_key is not null, queue from forge_job indexed by forge_job_claimed
 where claim >= :pod << 32 and claim < (:pod + 1) << 32 limit :limit

-- Pods that have stopped beating.
-- name: remove_stale_pods
delete from forge_pod where beat_at < :before returning id

-- Owners of claims that are no pod's: reaped ones that claimed once more before they knew. Hops from owner to owner.
-- name: orphan_owners
with recursive owner(id) as (
    select (select min(claim) >> 32 from forge_job indexed by forge_job_claimed where claim is not null)
    union all
    select (select min(claim) >> 32 from forge_job indexed by forge_job_claimed where claim >= (owner.id + 1) << 32)
      from owner where owner.id is not null
)
select id from owner where id is not null and not exists (select 1 from forge_pod p where p.id = owner.id)

-- name: cancel_requests
select id, claim from forge_job indexed by forge_job_cancel
 where cancel_requested_at is not null and claim >= :pod << 32 and claim < (:pod + 1) << 32

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
insert into forge_job (id, run_at, enqueued_at, timeout, unique_for, keep_result, priority, attempts, max_attempts, crashes, queue,
                 kind, payload, dedupe_key, tags, errors, line, rate_limit, concurrency_key, concurrency)
select id, :now, enqueued_at, timeout, unique_for, keep_result, priority, iif(:reset, 0, attempts), max_attempts,
       iif(:reset, 0, crashes), queue, kind, payload, dedupe_key, tags, errors, line, rate_limit, concurrency_key, concurrency
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
insert into forge_queue (name, max_workers, paused, backoff_enabled, backoff_base_seconds, backoff_max_seconds, throttle,
                   retain_done_days, retain_dead_days)
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
select cast(86400000000 * min(7, 30, coalesce(min(min(retain_done_days, retain_dead_days)), 7)) as integer) from forge_queue

-- name: prune_keys
delete from forge_job_key where key in (select key from forge_job_key where held_until <= :now limit :n)


-- name: schema_exists
select count(*) from sqlite_master where type = 'table' and name = 'forge_migration'

-- Not by the function pragma_database_list: that begins a transaction that reads.
-- name: where_am_i
pragma database_list

-- Whether forge made this file when its tables were named job, queue and so on.
-- name: unprefixed_tables
select count(*) from sqlite_master where type = 'table' and name = 'job_history' and sql like '%keep_result%'

-- name: schema_version
select coalesce(max(number), 0) from forge_migration

-- name: oldest_release
select max(coalesce(oldest, number)) from forge_migration

-- name: record_migration
insert into forge_migration (number, title, oldest, applied_at) values (:number, :title, :oldest, :now)

-- -- leases ------------------------------------------------------------------------------------------------------

-- The lease is free if it was given back or has lapsed, is the asker's own, or its pod is no more. One that was renewed
-- further in the future than a TTL has lapsed too: the clock was set back.
-- name: acquire_lease
update forge_leader set term = term + 1, holder = :key, pod = :pod, host = :host, pid = :pid, since = :now, renewed_at = :now,
                  until = :until
 where holder is null or until <= :now or renewed_at > :until or holder = :key
    or (pod is not null and not exists (select 1 from forge_pod p where p.id = forge_leader.pod))
returning term

-- The row again, if somebody has emptied the table. Terms must not come twice, and the last one is not known any more:
-- the seconds since 1970 are more than there ever were.
-- name: restore_lease
insert or ignore into forge_leader (one, term) values (1, :now / 1000000)

-- name: lease_until
select until from forge_leader

-- name: renew_lease
update forge_leader set pod = :pod, renewed_at = :now, until = :until where term = :term and holder = :key

-- name: release_lease
update forge_leader set holder = null, until = :now where term = :term

-- name: leader
select term, pod, host, pid, since, until from forge_leader where holder is not null and until > :now

-- The first step of a leader's write: no row, no write.
-- name: hold_term
select term from forge_leader where term = :term and holder is not null

-- -- schedules ---------------------------------------------------------------------------------------------------

-- part: schedule_columns
s.name, s.expression, s.kind, s.payload, s.timezone, s.queue, s.priority, s.max_attempts, s.timeout, s.keep_result, s.dedupe_key,
s.unique_for, s.tags, s.catch_up, s.jitter, s.source, s.line, s.project, s.paused, s.disabled, s.next_at, s.last_slot, s.last_job, s.last_skipped, s.revision,
s.paused_at, s.pauses

-- name: schedules
select {schedule_columns} from forge_schedule s order by s.name

-- name: schedule
select {schedule_columns} from forge_schedule s where s.name = :name

-- Due ones, the longest due first, with the next slot of all and the time by which they are due: one row at least, without
-- a name if there is none.
-- name: due_schedules
select {schedule_columns}, (select min(a.next_at) from forge_schedule a where not a.paused and a.disabled is null), c.now from (select :now as now) c left join (
    select * from forge_schedule where not paused and disabled is null and next_at <= :now
     order by next_at, name limit :n) s
 order by s.next_at, s.name

-- Add a schedule or change one of the sources :over, if there is anything to change. What it says of time decides whether
-- its next slot is found anew.
-- name: put_schedule
insert into forge_schedule as s (name, expression, kind, payload, timezone, queue, priority, max_attempts, timeout, keep_result,
                           dedupe_key, unique_for, tags, catch_up, jitter, source, line, project, disabled, next_at)
values (:name, :expression, :kind, :payload, :timezone, :queue, :priority, :max_attempts, :timeout, :keep_result, :dedupe_key,
        :unique_for, :tags, :catch_up, :jitter, :source, :line, :project, :disabled, :next_at)
on conflict (name) do update set
    expression = excluded.expression, kind = excluded.kind, payload = excluded.payload, timezone = excluded.timezone,
    queue = excluded.queue, priority = excluded.priority, max_attempts = excluded.max_attempts, timeout = excluded.timeout,
    keep_result = excluded.keep_result, dedupe_key = excluded.dedupe_key, unique_for = excluded.unique_for, tags = excluded.tags,
    catch_up = excluded.catch_up, jitter = excluded.jitter, source = excluded.source, line = excluded.line, project = excluded.project,
    revision = s.revision + 1,
    disabled = iif((s.expression, s.timezone) = (excluded.expression, excluded.timezone), s.disabled, excluded.disabled),
    next_at = iif((s.expression, s.timezone) = (excluded.expression, excluded.timezone), s.next_at, excluded.next_at)
 where s.source in (select value from json_each(:over))
   and (s.expression, s.kind, s.payload, s.timezone, s.queue, s.priority, s.max_attempts, s.timeout, s.keep_result,
        s.dedupe_key, s.unique_for, s.tags, s.catch_up, s.jitter, s.source, s.line, s.project)
       is not
       (excluded.expression, excluded.kind, excluded.payload, excluded.timezone, excluded.queue, excluded.priority,
        excluded.max_attempts, excluded.timeout, excluded.keep_result, excluded.dedupe_key, excluded.unique_for, excluded.tags,
        excluded.catch_up, excluded.jitter, excluded.source, excluded.line, excluded.project)
returning name

-- name: lock_schedules
select name, source, project from forge_schedule
 where project = :project or name in (select value from json_each(:names)) order by name

-- name: remove_declared
delete from forge_schedule where source in ('config', 'code') and project = :project
   and name not in (select value from json_each(:names)) returning name

-- name: remove_schedule
delete from forge_schedule where name = :name and (source = 'runtime' or :declared) returning name

-- name: pause_schedule
update forge_schedule set paused = 1, paused_at = iif(paused, paused_at, :now) where name = :name returning name

-- Only what the caller has seen: times that have come due since would be forgotten.
-- name: resume_schedule
update forge_schedule set paused = 0, paused_at = null, disabled = null, next_at = :next_at, pauses = :pauses
 where name = :name and revision = :revision and paused = :paused and paused_at is :paused_at and disabled is :disabled
returning name

-- name: disable_schedule
update forge_schedule set disabled = :reason where name = :name and revision = :revision returning name

-- Firing, first step: the schedule is still what it was when its slots were found.
-- name: lock_schedule
select next_at from forge_schedule where name = :name and revision = :revision and not paused and disabled is null

-- Second step: a slot that has fired before is not answered.
-- name: take_slot
insert into forge_schedule_slot (schedule, slot, job_id, fired_at) values (:name, :slot, :job, :now)
on conflict do nothing returning slot

-- Third step, behind the jobs themselves.
-- name: skip_slot
update forge_schedule_slot set skipped = 1, job_id = :job where schedule = :name and slot = :slot returning slot

-- name: advance_schedule
update forge_schedule
   set next_at = max(next_at, :next_at), last_slot = coalesce(:slot, last_slot), last_job = coalesce(:job, last_job),
       last_skipped = coalesce(:skipped, last_skipped)
 where name = :name returning name

-- name: schedule_slots
select slot, fired_at, job_id, skipped from forge_schedule_slot where schedule = :name order by slot desc limit :n

-- name: prune_slots
delete from forge_schedule_slot where (schedule, slot) in (
    select schedule, slot from forge_schedule_slot where fired_at < :now - cast(1000000 * :keep as integer) order by fired_at limit :n)
returning slot

-- -- shares ------------------------------------------------------------------------------------------------------

-- All that look_at_shares goes by, as text: if it is what it was before, so is the answer. With 3,000 queues this takes
-- 0.7 ms, and the look 13.
-- name: known_of_shares
select (select json_group_array(json_array(name, max_workers, paused)) from forge_queue),
       (select json_group_array(json_array(id, queues, capacity)) from forge_pod),
       (select json_group_array(json_array(pod, queue, workers, applied, running)) from forge_share),
       (select json_group_array(queue) from forge_line_queue)

-- Lists of queues are read once, not once for each queue.
-- name: look_at_shares
with declared(queue) as materialized (
    select e.value from forge_pod p cross join json_each(p.queues) e where p.id = :pod
), elsewhere(queue, pods) as materialized (
    select e.value, count(*) from forge_pod p cross join json_each(p.queues) e where p.id <> :pod and p.capacity > 0 group by e.value
)
select q.name, q.max_workers, q.paused, q.name in declared, s.workers, s.applied, s.running, coalesce(o.pods, 0),
       exists (select 1 from forge_share r where r.queue = q.name and r.pod <> me.id),
       exists (select 1 from forge_line_queue l where l.queue = q.name)
  from forge_pod me cross join forge_queue q left join forge_share s on s.pod = me.id and s.queue = q.name
  left join elsewhere o on o.queue = q.name
 where me.id = :pod and (s.pod is not null or q.name in (select value from json_each(:queues)))

-- name: report_share
insert into forge_share (pod, queue, workers, applied, running)
select id, :queue, :workers, :applied, :running from forge_pod where id = :pod
on conflict (pod, queue) do update set running = excluded.running,
    applied = iif(workers is excluded.workers, excluded.applied, applied)
returning queue, applied

-- name: totals
select name, max_workers from forge_queue

-- name: members
select id, queues, capacity from forge_pod

-- name: shares
select pod, queue, workers, applied, running from forge_share

-- name: assign_share
insert into forge_share (pod, queue, workers, term) select id, :queue, :workers, :term from forge_pod where id = :pod
on conflict (pod, queue) do update set workers = excluded.workers, term = excluded.term

-- name: remove_share
delete from forge_share where pod = :pod and queue = :queue

-- name: undeclared_queues
with recursive hop(queue) as (
    select (select queue from forge_job indexed by forge_job_claim where line is null and status in ('pending', 'failed') order by queue limit 1)
    union all
    select (select j.queue from forge_job j indexed by forge_job_claim
             where j.line is null and j.status in ('pending', 'failed') and j.queue > hop.queue order by j.queue limit 1)
      from hop where hop.queue is not null
), waiting(queue) as (
    select queue from hop where queue is not null
    union
    select l.queue from forge_line_queue l where exists (
        select 1 from forge_job j indexed by forge_job_line_due
         where j.queue = l.queue and j.line is not null and j.status in ('pending', 'failed'))
)
select n.queue, exists (select 1 from waiting w where w.queue = n.queue)
  from (select queue from waiting union select name from forge_queue) n
 where not exists (select 1 from forge_pod p, json_each(p.queues) e where e.value = n.queue) order by n.queue

-- -- budgets -----------------------------------------------------------------------------------------------------

-- A lease made in the future: the clock was set back. Its time begins again, or it would last as long as that.
-- name: mend_leases
update forge_budget_lease set until = :now + (until - leased_at), leased_at = :now where scope = :scope and leased_at > :now

-- name: budget
select capacity, refill_per_sec, tokens, at, drains, declared_capacity, declared_refill from forge_budget where scope = :scope

-- name: budget_leases
select pod, tokens, until, spent, number, drains from forge_budget_lease where scope = :scope order by pod

-- name: budget_scopes
select scope from forge_budget order by scope

-- name: pour_budget
update forge_budget set tokens = :tokens, at = :now where scope = :scope

-- name: end_leases
delete from forge_budget_lease where scope = :scope and until <= :now and pod <> :pod

-- name: end_lease
delete from forge_budget_lease where scope = :scope and pod = :pod

-- name: put_lease
insert into forge_budget_lease (scope, pod, tokens, spent, number, drains, leased_at, until)
values (:scope, :pod, :tokens, :spent, :number, :drains, :now, :until)
on conflict (scope, pod) do update set tokens = excluded.tokens, spent = excluded.spent, number = excluded.number,
    drains = excluded.drains, leased_at = excluded.leased_at, until = excluded.until

-- name: put_budget
insert into forge_budget (scope, capacity, refill_per_sec, tokens, at) values (:scope, :capacity, :refill, :capacity, :now)
on conflict (scope) do update set capacity = excluded.capacity, refill_per_sec = excluded.refill_per_sec,
    tokens = min(tokens, excluded.capacity)

-- name: note_declared
update forge_budget set declared_capacity = :capacity, declared_refill = :refill where scope = :scope

-- name: drain_budget
update forge_budget set tokens = 0, at = :now, drains = drains + 1 where scope = :scope

-- -- lines -------------------------------------------------------------------------------------------------------

-- name: line_queues
select queue from forge_line_queue

-- Whether any job of a line may be claimed now; see PostgreSQL's claim_lines, whose steps these are.
-- name: lines_open
select 1 where exists (select 1 from forge_pod where id = :pod)
   and not exists (select 1 from forge_queue where name = :queue and (paused or throttled_until > :now))
   and exists (select 1 from forge_job indexed by forge_job_line_due where queue = :queue and line is not null
                  and status in ('pending', 'failed') and run_at <= :now)

-- The first waiting job of the next priority in the same line, or of the next line. Not as one comparison of both columns,
-- for which SQLite would read the rest of the line.
-- name: next_head
select * from (
    select line, priority, run_at, rate_limit, concurrency_key, concurrency from forge_job indexed by forge_job_line
     where queue = :queue and line is not null and status in ('pending', 'failed') and line = :line and priority > :priority
     order by priority, run_at, id limit 1)
union all
select * from (
    select line, priority, run_at, rate_limit, concurrency_key, concurrency from forge_job indexed by forge_job_line
     where queue = :queue and line is not null and status in ('pending', 'failed') and line > :line
     order by line, priority, run_at, id limit 1)
limit 1

-- name: slots_taken
select slot from forge_job indexed by forge_job_slot where concurrency_key = :key and slot > 0

-- name: due_in_line
select rowid from forge_job indexed by forge_job_line
 where queue = :queue and line = :line and line is not null and status in ('pending', 'failed') and priority = :priority
   and run_at <= :now order by run_at, id limit :n

-- name: claim_in_line
update forge_job set status = 'in_progress', attempts = attempts + 1, claim = :token, claimed_at = :now, slot = 0
 where rowid = :row returning {claim_columns}

-- name: give_slot
update forge_job set slot = :slot where rowid = :row

-- A slot from one job of a chain to another.
-- name: slot_of
select slot from forge_job where id = :id and claim = :token

-- name: change_slot
update forge_job set slot = :slot where id = :id and claim = :token

-- -- metrics -----------------------------------------------------------------------------------------------------

-- part: counters
completed, failed, throttled, snoozed, crashed, cancelled, dead, reaped

-- part: gauges
pending, scheduled, in_flight, retrying, dead_jobs, oldest, estimated

-- part: added
on conflict do update set
    completed = completed + excluded.completed, failed = failed + excluded.failed, throttled = throttled +
    excluded.throttled, snoozed = snoozed + excluded.snoozed, crashed = crashed + excluded.crashed, cancelled =
    cancelled + excluded.cancelled, dead = dead + excluded.dead, reaped = reaped + excluded.reaped,
    latency = (select json_group_object(key, n) from (select e.key as key, sum(e.value) as n from (
            select key, value from json_each(latency) union all select key, value from json_each(excluded.latency)) e group by e.key)),
    run_time = (select json_group_object(key, n) from (select e.key as key, sum(e.value) as n from (
            select key, value from json_each(run_time) union all select key, value from json_each(excluded.run_time)) e group by e.key))

-- name: take_report
insert into forge_metric_writer (writer, number, at) values (:writer, :number, :now)
on conflict (writer) do update set number = excluded.number, at = excluded.at where number < excluded.number returning number

-- name: write_part
insert into forge_metric_part (minute, pod, queue, {counters}, latency, run_time)
values (:minute, :pod, :queue, :completed, :failed, :throttled, :snoozed, :crashed, :cancelled, :dead, :reaped, :latency, :run_time)
{added}

-- name: write_vitals
insert into forge_metric_pod (minute, pod, host, pid, workers, connections, master_cpu, zygote_cpu, workers_cpu, master_rss, zygote_rss,
                        workers_rss, master_pss, zygote_pss, workers_pss, claims, finalizes, beats)
values (:minute, :pod, :host, :pid, :workers, :connections, :master_cpu, :zygote_cpu, :workers_cpu, :master_rss, :zygote_rss,
        :workers_rss, :master_pss, :zygote_pss, :workers_pss, :claims, :finalizes, :beats)
on conflict do update set workers = max(workers, excluded.workers), connections = max(connections, excluded.connections),
    master_cpu = coalesce(master_cpu + excluded.master_cpu, master_cpu, excluded.master_cpu),
    zygote_cpu = coalesce(zygote_cpu + excluded.zygote_cpu, zygote_cpu, excluded.zygote_cpu),
    workers_cpu = coalesce(workers_cpu + excluded.workers_cpu, workers_cpu, excluded.workers_cpu),
    master_rss = coalesce(max(master_rss, excluded.master_rss), master_rss, excluded.master_rss),
    zygote_rss = coalesce(max(zygote_rss, excluded.zygote_rss), zygote_rss, excluded.zygote_rss),
    workers_rss = coalesce(max(workers_rss, excluded.workers_rss), workers_rss, excluded.workers_rss),
    master_pss = coalesce(max(master_pss, excluded.master_pss), master_pss, excluded.master_pss),
    zygote_pss = coalesce(max(zygote_pss, excluded.zygote_pss), zygote_pss, excluded.zygote_pss),
    workers_pss = coalesce(max(workers_pss, excluded.workers_pss), workers_pss, excluded.workers_pss),
    claims = (select json_group_object(key, n) from (select e.key as key, sum(e.value) as n from (
            select key, value from json_each(claims) union all select key, value from json_each(excluded.claims)) e group by e.key)),
    finalizes = (select json_group_object(key, n) from (select e.key as key, sum(e.value) as n from (
            select key, value from json_each(finalizes) union all select key, value from json_each(excluded.finalizes)) e group by e.key)),
    beats = (select json_group_object(key, n) from (select e.key as key, sum(e.value) as n from (
            select key, value from json_each(beats) union all select key, value from json_each(excluded.beats)) e group by e.key))

-- name: enqueued_live
select queue, count(*), max(id) from (
    select id, queue from forge_job where id >= :first and id < :last order by id limit :most) group by queue

-- name: enqueued_past
select queue, count(*), max(id) from (
    select id, queue from forge_job_history where id >= :first and id < :last order by id limit :most) group by queue

-- Hops from queue to queue; what waits is in the claim's index, which has no more of it than :most read of each queue.
-- name: standing_waiting
with recursive hop(queue) as (
    select (select queue from forge_job indexed by forge_job_claim where line is null and status in ('pending', 'failed') order by queue limit 1)
    union all
    select (select j.queue from forge_job j indexed by forge_job_claim
             where j.line is null and j.status in ('pending', 'failed') and j.queue > hop.queue order by j.queue limit 1)
      from hop where hop.queue is not null
), named(queue) as (
    select queue from hop where queue is not null union select queue from forge_line_queue
)
select n.queue,
       (select json_array(count(*) filter (where status = 'pending' and run_at <= :now),
                          count(*) filter (where status = 'pending' and run_at > :now),
                          count(*) filter (where status = 'failed'), count(*)) from (
            select * from (select status, run_at from forge_job indexed by forge_job_claim
                            where queue = n.queue and line is null and status in ('pending', 'failed')
                            order by priority, run_at, id limit :most)
            union all
            select * from (select status, run_at from forge_job indexed by forge_job_line_due
                            where queue = n.queue and line is not null and status in ('pending', 'failed')
                            order by run_at limit :most))) from named n

-- name: standing_running
select queue, count(*) from (select queue from forge_job indexed by forge_job_claimed where claim is not null limit :most) group by queue

-- name: dead_jobs
select queue, count(*) from (
    select queue from forge_job_history indexed by forge_job_history_unhappy where status in ('dead', 'cancelled') and status = 'dead' limit :most)
 group by queue

-- name: database_pages
select page_count * page_size from pragma_page_count, pragma_page_size

-- The leader's writes, each behind hold_term.
-- name: record_standing
insert into forge_metric (minute, queue, {gauges})
values (:minute, :queue, :pending, :scheduled, :in_flight, :retrying, :dead_jobs, :oldest, :estimated)
on conflict do update set pending = excluded.pending, scheduled = excluded.scheduled, in_flight = excluded.in_flight,
    retrying = excluded.retrying, dead_jobs = excluded.dead_jobs, oldest = excluded.oldest, estimated = excluded.estimated

-- name: record_enqueued
insert into forge_metric (minute, queue, enqueued) values (:minute, :queue, :enqueued)
on conflict do update set enqueued = max(coalesce(enqueued, 0), excluded.enqueued)

-- name: record_database
insert into forge_metric_database (minute, size, job_size, history_size, job_dead, history_dead)
values (:minute, :size, :job_size, :history_size, :job_dead, :history_dead)
on conflict do update set size = excluded.size, job_size = excluded.job_size, history_size = excluded.history_size,
    job_dead = excluded.job_dead, history_dead = excluded.history_dead

-- One minute at a time, in two steps.
-- name: oldest_parts
select min(minute) from forge_metric_part having min(minute) <= :before

-- name: roll_up_metrics
insert into forge_metric (minute, queue, {counters}, latency, run_time)
select minute, queue, sum(completed), sum(failed), sum(throttled), sum(snoozed), sum(crashed), sum(cancelled), sum(dead), sum(reaped),
       coalesce((select json_group_object(s.key, s.n) from (
           select e.key, sum(e.value) as n from forge_metric_part r cross join json_each(r.latency) e
            where r.minute = :minute and r.queue = p.queue group by e.key) s), '{}'),
       coalesce((select json_group_object(s.key, s.n) from (
           select e.key, sum(e.value) as n from forge_metric_part r cross join json_each(r.run_time) e
            where r.minute = :minute and r.queue = p.queue group by e.key) s), '{}')
  from forge_metric_part p where minute = :minute group by minute, queue
{added}

-- name: remove_parts
delete from forge_metric_part where minute = :minute

-- name: prune_metric
delete from forge_metric where (minute, queue) in (select minute, queue from forge_metric where minute < :before order by minute, queue limit :n)

-- name: prune_metric_pod
delete from forge_metric_pod where (minute, pod) in (select minute, pod from forge_metric_pod where minute < :before order by minute, pod limit :n)

-- name: prune_metric_database
delete from forge_metric_database where minute in (select minute from forge_metric_database where minute < :before order by minute limit :n)

-- name: prune_metric_writer
delete from forge_metric_writer where writer in (select writer from forge_metric_writer where at < :before limit :n)

-- name: read_metrics
with seen as materialized (
    select minute / :step * :step as at, minute, queue, {counters}, latency, run_time, enqueued, {gauges} from forge_metric
     where minute >= :since and minute < :until and (:queue is null or queue = :queue)
    union all
    select minute / :step * :step, minute, queue, {counters}, latency, run_time, null, null, null, null, null, null, null, null
      from forge_metric_part where minute >= :since and minute < :until and (:queue is null or queue = :queue)
), late as (select s.at, s.queue, json_group_object(s.key, s.n) as latencies from (
        select r.at, r.queue, e.key, sum(e.value) as n from seen r cross join json_each(r.latency) e group by r.at, r.queue, e.key) s
     group by s.at, s.queue),
ran as (select s.at, s.queue, json_group_object(s.key, s.n) as run_times from (
        select r.at, r.queue, e.key, sum(e.value) as n from seen r cross join json_each(r.run_time) e group by r.at, r.queue, e.key) s
     group by s.at, s.queue),
stood as (  -- the other columns are those of the row with the greatest minute
    select at, queue, max(minute), {gauges} from seen where pending is not null group by at, queue
), sums as (
    select at, queue, sum(completed) as completed, sum(failed) as failed, sum(throttled) as throttled, sum(snoozed) as snoozed, sum(crashed) as crashed, sum(cancelled) as cancelled, sum(dead) as dead, sum(reaped) as reaped,
           sum(enqueued) as enqueued from seen group by at, queue
)
select at, queue, {counters}, latencies, run_times, enqueued, {gauges}
  from sums left join late using (at, queue) left join ran using (at, queue) left join stood using (at, queue) order by at, queue

-- name: read_pod_metrics
with seen as materialized (
    select minute / :step * :step as at, * from forge_metric_pod where minute >= :since and minute < :until
),
claimed as (select s.at, s.pod, json_group_object(s.key, s.n) as claim_times from (
        select r.at, r.pod, e.key, sum(e.value) as n from seen r cross join json_each(r.claims) e group by r.at, r.pod, e.key) s
     group by s.at, s.pod),
ended as (select s.at, s.pod, json_group_object(s.key, s.n) as finalize_times from (
        select r.at, r.pod, e.key, sum(e.value) as n from seen r cross join json_each(r.finalizes) e group by r.at, r.pod, e.key) s
     group by s.at, s.pod),
beaten as (select s.at, s.pod, json_group_object(s.key, s.n) as beat_times from (
        select r.at, r.pod, e.key, sum(e.value) as n from seen r cross join json_each(r.beats) e group by r.at, r.pod, e.key) s
     group by s.at, s.pod),
sums as (
    select at, pod, min(host), min(pid), max(workers), max(connections), sum(master_cpu), sum(zygote_cpu), sum(workers_cpu),
           max(master_rss), max(zygote_rss), max(workers_rss), max(master_pss), max(zygote_pss), max(workers_pss)
      from seen group by at, pod
)
select s.*, claim_times, finalize_times, beat_times
  from sums s left join claimed using (at, pod) left join ended using (at, pod) left join beaten using (at, pod) order by at, pod

-- name: read_database_metrics
select minute / :step * :step as at, size, job_size, history_size, job_dead, history_dead, max(minute) from forge_metric_database
 where minute >= :since and minute < :until group by 1 order by 1

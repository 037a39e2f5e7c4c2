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
dedupe_key, unique_for, keep_result, tags, errors, cancel_requested_at, claim >> 32

-- part: filter
id < :before
   and (:statuses is null or status in (select value from json_each(:statuses)))
   and (:queues is null or queue in (select value from json_each(:queues)))
   and (:kinds is null or kind in (select value from json_each(:kinds)))
   and (:tag is null or exists (select 1 from json_each(tags) where value = :tag))

-- part: kept
id, run_at, enqueued_at, claimed_at, cancel_requested_at, claim, timeout, unique_for, keep_result, priority, attempts,
max_attempts, queue, kind, payload, dedupe_key, tags

-- part: batch
json_each(:tokens) t cross join job j on j.id = substr(:ids, t.key * 16 + 1, 16) and +j.claim = t.value

-- part: queue_columns
name, max_workers, paused, backoff_enabled, backoff_base_seconds, backoff_max_seconds, throttle, retain_done_days,
retain_dead_days, throttle_attempts, throttled_until

-- The claim hops from one priority to the next: within a priority the due jobs are one range, so a million jobs
-- scheduled for next year in front of the due ones of a later priority are never read.
-- name: next_priority
select priority from job indexed by job_claim
 where queue = :queue and status in ('pending', 'failed') and priority > :priority order by priority limit 1

-- The same for a claim: none for a pod that is no more, or of a queue that is paused or cools down.
-- part: level
select priority from job indexed by job_claim
 where queue = :queue and status in ('pending', 'failed') and priority > :priority
   and exists (select 1 from pod where id = :pod)
   and not exists (select 1 from queue where name = :queue and (paused or throttled_until > :now))
 order by priority limit 1

-- name: next_claimable
{level}

-- Claim up to :n due jobs of the next priority after :priority that has any. There is no low-water mark here: SQLite takes a claimed job out of the index
-- at once, so a scan from the start never meets a dead entry. Rows are found again by rowid: by id it took 1 µs a job more.
-- name: claim
update job set status = 'in_progress', attempts = attempts + 1, claim = :token, claimed_at = :now
 where rowid in (
    select rowid from job indexed by job_claim
     where queue = :queue and status in ('pending', 'failed') and priority = ({level}) and run_at <= :now
     order by run_at, id limit :n)
returning {claim_columns}

-- The hot ending, in three steps: where the rows are (a claim whose token is stale is not found), copy them, remove
-- them. Finding them by id once and by rowid twice takes 4.8 µs a job, by id twice 5.2.
-- With each comes whether any queue has been throttled, which is found out once: a statement less for those that were not.
-- name: rowids
select j.rowid, exists (select 1 from queue where throttle_attempts > 0) from {batch}

-- name: finalize_done
insert into job_history ({kept}, status, crashes, errors, finished_at)
select {kept}, 'done', crashes, errors, :now from job where rowid in (select value from json_each(:rowids))

-- name: remove_batch
delete from job where rowid in (select value from json_each(:rowids))

-- name: keep_result
update job_history set result = iif(keep_result is null, null, :result) where id = :id

-- Which claims of a batch are still their owner's.
-- name: ours
select j.id, j.claim from {batch}

-- A success well past a throttle window: the far end has recovered, the curve starts over.
-- name: warm_up
update queue set throttle_attempts = 0, throttled_until = null
 where name in (select value from json_each(:queues)) and throttle_attempts > 0 and throttled_until <= :now - :grace

-- What decides how any other claim ends.
-- name: claimed_job
select attempts, max_attempts, crashes, cancel_requested_at is not null, errors, queue, run_at, enqueued_at
  from job where id = :id and +claim = :token

-- name: give_back
update job set status = :status, run_at = :run_at, attempts = :attempts, crashes = :crashes, errors = :errors, claim = null,
               claimed_at = null, progress = null
 where id = :id

-- name: refund
update job set attempts = attempts - 1 where id = :id

-- name: end_job
insert into job_history ({kept}, status, crashes, errors, finished_at)
select {kept}, :status, :crashes, :errors, :now from job where id = :id

-- name: remove_job
delete from job where id = :id

-- Give back the key of a job that has ended: at once, or after unique_for.
-- name: free_key
delete from job_key where job_id = :id
   and key = (select dedupe_key from job_history where id = :id and unique_for is null)

-- name: hold_key
update job_key set held_until = (select finished_at + unique_for * 1000000 from job_history where id = :id)
 where job_id = :id and key = (select dedupe_key from job_history where id = :id and unique_for is not null)

-- name: ensure_queue
insert into queue (name) values (:queue) on conflict do nothing

-- The first throttle of a window sets the window and advances the counter; the rest of the window changes nothing.
-- :hint is the handler's own wish, which only a queue with throttle = 'hint' grants; there, a handler may ask it for its
-- job alone. The counter is capped at 30, so the shift cannot overflow.
-- name: cool_down
update queue set throttle_attempts = min(throttle_attempts + 1, 30),
       throttled_until = :now + cast(1000000 * case
           when throttle = 'hint' and :hint is not null then :hint
           when not backoff_enabled then 60
           else min(backoff_base_seconds * (1 << throttle_attempts), backoff_max_seconds) end as integer)
 where name = :queue and coalesce(throttled_until <= :now, true) and not (throttle = 'hint' and :job_only)

-- name: throttle_of
select throttle, throttled_until from queue where name = :queue

-- Storing jobs. These run on connections of the caller's too, so each starts with the word INSERT or UPDATE: that is
-- how Python's sqlite3 knows to begin a transaction, and a transaction that starts by writing has the newest state,
-- while one that starts by reading may be refused its first write (SQLITE_BUSY_SNAPSHOT).
-- An id that is known, live or ended, is left as it is.
-- name: insert_job
insert into job (id, queue, kind, payload, priority, run_at, enqueued_at, max_attempts, timeout, dedupe_key, unique_for,
                 keep_result, tags)
select :id, :queue, :kind, :payload, :priority, :run_at, :now, :max_attempts, :timeout, :dedupe_key, :unique_for,
       :keep_result, :tags
 where not exists (select 1 from job_history where id = :id)
on conflict (id) do nothing

-- Answers a row if the key was won: it was free, or kept for a job that ended long enough ago.
-- name: take_key
insert into job_key (key, job_id)
select :key, :id where not exists (select 1 from job where id = :id) and not exists (select 1 from job_history where id = :id)
on conflict (key) do update set job_id = excluded.job_id, held_until = null where held_until <= :now
returning job_id

-- Why it was not won: the id is known, or another job has the key.
-- name: key_owner
select exists (select 1 from job where id = :id) or exists (select 1 from job_history where id = :id),
       (select job_id from job_key where key = :key)

-- A taken key with on_conflict: change the job that has it, if it has not started.
-- name: replace_payload
update job set payload = :payload where id = :id and status in ('pending', 'failed')

-- name: push_run_at
update job set run_at = :run_at where id = :id and status = 'pending'

-- name: set_wake
update queue set wake = :wake where name = :queue and wake <> :wake

-- name: register_pod
insert into pod (name, host, pid, queues, started_at, beat_at, capacity)
values (:name, :host, :pid, :queues, :now, :now, :capacity)
returning id

-- name: beat
update pod set beat_at = :now where id = :pod

-- How far a running job is.
-- name: progress
update job set progress = :progress where id = :id and +claim = :token

-- The earliest job of one priority; see next_priority.
-- name: first_due
select run_at from job indexed by job_claim
 where queue = :queue and status in ('pending', 'failed') and priority = :priority order by run_at, id limit 1

-- name: standing
select paused, throttled_until from queue where name = :queue

-- name: serve_queues
update pod set queues = :queues, capacity = :capacity where id = :pod

-- name: deregister_pod
delete from pod where id = :pod

-- name: pods
select id, name, host, pid, queues, started_at, beat_at, capacity from pod order by id

-- The claims of one pod, for release: its tokens are one range.
-- name: claims_of_pod
select id, claim, dedupe_key is not null, queue from job indexed by job_claimed
 where claim >= :pod << 32 and claim < (:pod + 1) << 32 limit :limit

-- Pods that have stopped beating.
-- name: remove_stale_pods
delete from pod where beat_at < :before returning id

-- Owners of claims that are no pod's: reaped ones that claimed once more before they knew. Hops from owner to owner.
-- name: orphan_owners
with recursive owner(id) as (
    select (select min(claim) >> 32 from job indexed by job_claimed where claim is not null)
    union all
    select (select min(claim) >> 32 from job indexed by job_claimed where claim >= (owner.id + 1) << 32)
      from owner where owner.id is not null
)
select id from owner where id is not null and not exists (select 1 from pod p where p.id = owner.id)

-- name: cancel_requests
select id, claim from job indexed by job_cancel
 where cancel_requested_at is not null and claim >= :pod << 32 and claim < (:pod + 1) << 32

-- name: request_cancel
update job set cancel_requested_at = coalesce(cancel_requested_at, :now) where id = :id

-- name: live_job
select status, attempts, crashes, errors, dedupe_key from job where id = :id

-- name: ended_job
select dedupe_key from job_history where id = :id

-- name: drop_key
delete from job_key where key = :key and job_id = :id

-- name: remove_ended
delete from job_history where id = :id

-- Back to life: an ended job takes its key back, unless another has it, and returns to pending.
-- name: retake_key
insert into job_key (key, job_id) values (:key, :id)
on conflict (key) do update set job_id = excluded.job_id, held_until = null
   where held_until is not null and (held_until <= :now or job_id = excluded.job_id)

-- name: revive_job
insert into job (id, run_at, enqueued_at, timeout, unique_for, keep_result, priority, attempts, max_attempts, crashes, queue,
                 kind, payload, dedupe_key, tags, errors)
select id, :now, enqueued_at, timeout, unique_for, keep_result, priority, iif(:reset, 0, attempts), max_attempts,
       iif(:reset, 0, crashes), queue, kind, payload, dedupe_key, tags, errors
  from job_history where id = :id

-- name: hurry
update job set run_at = min(run_at, :now), status = 'pending', attempts = iif(:reset, 0, attempts),
               crashes = iif(:reset, 0, crashes)
 where id = :id and status in ('pending', 'failed')

-- name: get_live
select {job_columns}, null, null, progress from job where id = :id

-- name: get_ended
select {job_columns}, finished_at, result, null from job_history where id = :id

-- Listings: newest first by id, an order that no later change disturbs. A null filter matches all.
-- name: list_live
select {job_columns}, null, null, progress from job where {filter} order by id desc limit :limit

-- name: list_ended
select {job_columns}, finished_at, result, null from job_history where {filter} order by id desc limit :limit

-- The same through the small index of the few that people look for.
-- name: list_unhappy
select {job_columns}, finished_at, result, null from job_history indexed by job_history_unhappy
 where status in ('dead', 'cancelled') and {filter} order by id desc limit :limit

-- name: counts
select queue,
       count(*) filter (where status = 'pending' and run_at <= :now),
       count(*) filter (where status = 'pending' and run_at > :now),
       count(*) filter (where status = 'in_progress'),
       count(*) filter (where status = 'failed'),
       coalesce(:now - min(run_at) filter (where status in ('pending', 'failed') and run_at <= :now), 0) / 1e6
  from job group by queue

-- name: ended_counts
select queue, status, count(*) from job_history group by queue, status

-- name: queues
select {queue_columns} from queue order by name

-- name: set_queue
insert into queue (name, max_workers, paused, backoff_enabled, backoff_base_seconds, backoff_max_seconds, throttle,
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
  from job_history h indexed by job_history_finished left join queue q on q.name = h.queue
 where (h.finished_at, h.rowid) > (:after_at, :after_row) and h.finished_at < :now - :least
 order by h.finished_at, h.rowid limit :n

-- name: prune_row
delete from job_history where rowid = :row

-- name: shortest_retention
select cast(86400000000 * min(7, 30, coalesce(min(min(retain_done_days, retain_dead_days)), 7)) as integer) from queue

-- name: prune_keys
delete from job_key where key in (select key from job_key where held_until <= :now limit :n)


-- name: schema_exists
select count(*) from sqlite_master where type = 'table' and name = 'migration'

-- name: schema_version
select coalesce(max(number), 0) from migration

-- name: record_migration
insert into migration (number, title, applied_at) values (:number, :title, :now)

-- -- leases ------------------------------------------------------------------------------------------------------

-- The lease is free if it was given back or has lapsed, is the asker's own, or its pod is no more. One that was renewed
-- further in the future than a TTL has lapsed too: the clock was set back.
-- name: acquire_lease
update leader set term = term + 1, holder = :key, pod = :pod, host = :host, pid = :pid, since = :now, renewed_at = :now,
                  until = :until
 where holder is null or until <= :now or renewed_at > :until or holder = :key
    or (pod is not null and not exists (select 1 from pod p where p.id = leader.pod))
returning term

-- name: lease_until
select until from leader

-- name: renew_lease
update leader set pod = :pod, renewed_at = :now, until = :until where term = :term and holder = :key

-- name: release_lease
update leader set holder = null, until = :now where term = :term

-- name: leader
select term, pod, host, pid, since, until from leader where holder is not null and until > :now

-- The first step of a leader's write: no row, no write.
-- name: hold_term
select term from leader where term = :term and holder is not null

-- -- schedules ---------------------------------------------------------------------------------------------------

-- part: schedule_columns
s.name, s.expression, s.kind, s.payload, s.timezone, s.queue, s.priority, s.max_attempts, s.timeout, s.keep_result, s.dedupe_key,
s.unique_for, s.tags, s.catch_up, s.jitter, s.source, s.project, s.paused, s.disabled, s.next_at, s.last_slot, s.last_job, s.last_skipped, s.revision

-- name: schedules
select {schedule_columns} from schedule s order by s.name

-- name: schedule
select {schedule_columns} from schedule s where s.name = :name

-- Due ones, the longest due first, with the next slot of all and the time by which they are due: one row at least, without
-- a name if there is none.
-- name: due_schedules
select {schedule_columns}, (select min(a.next_at) from schedule a where not a.paused and a.disabled is null), c.now from (select :now as now) c left join (
    select * from schedule where not paused and disabled is null and next_at <= :now
     order by next_at, name limit :n) s
 order by s.next_at, s.name

-- Add a schedule or change one of the sources :over, if there is anything to change. What it says of time decides whether
-- its next slot is found anew.
-- name: put_schedule
insert into schedule as s (name, expression, kind, payload, timezone, queue, priority, max_attempts, timeout, keep_result,
                           dedupe_key, unique_for, tags, catch_up, jitter, source, project, disabled, next_at)
values (:name, :expression, :kind, :payload, :timezone, :queue, :priority, :max_attempts, :timeout, :keep_result, :dedupe_key,
        :unique_for, :tags, :catch_up, :jitter, :source, :project, :disabled, :next_at)
on conflict (name) do update set
    expression = excluded.expression, kind = excluded.kind, payload = excluded.payload, timezone = excluded.timezone,
    queue = excluded.queue, priority = excluded.priority, max_attempts = excluded.max_attempts, timeout = excluded.timeout,
    keep_result = excluded.keep_result, dedupe_key = excluded.dedupe_key, unique_for = excluded.unique_for, tags = excluded.tags,
    catch_up = excluded.catch_up, jitter = excluded.jitter, source = excluded.source, project = excluded.project,
    revision = s.revision + 1,
    disabled = iif((s.expression, s.timezone) = (excluded.expression, excluded.timezone), s.disabled, excluded.disabled),
    next_at = iif((s.expression, s.timezone) = (excluded.expression, excluded.timezone), s.next_at, excluded.next_at)
 where s.source in (select value from json_each(:over))
   and (s.expression, s.kind, s.payload, s.timezone, s.queue, s.priority, s.max_attempts, s.timeout, s.keep_result,
        s.dedupe_key, s.unique_for, s.tags, s.catch_up, s.jitter, s.source, s.project)
       is not
       (excluded.expression, excluded.kind, excluded.payload, excluded.timezone, excluded.queue, excluded.priority,
        excluded.max_attempts, excluded.timeout, excluded.keep_result, excluded.dedupe_key, excluded.unique_for, excluded.tags,
        excluded.catch_up, excluded.jitter, excluded.source, excluded.project)
returning name

-- name: lock_schedules
select name, source, project from schedule
 where project = :project or name in (select value from json_each(:names)) order by name

-- name: remove_declared
delete from schedule where source in ('config', 'code') and project = :project
   and name not in (select value from json_each(:names)) returning name

-- name: remove_schedule
delete from schedule where name = :name and (source = 'runtime' or :declared) returning name

-- name: pause_schedule
update schedule set paused = 1 where name = :name returning name

-- name: resume_schedule
update schedule set paused = 0, disabled = null, next_at = :next_at where name = :name and revision = :revision returning name

-- name: disable_schedule
update schedule set disabled = :reason where name = :name and revision = :revision returning name

-- Firing, first step: the schedule is still what it was when its slots were found.
-- name: lock_schedule
select next_at from schedule where name = :name and revision = :revision and not paused and disabled is null

-- Second step: a slot that has fired before is not answered.
-- name: take_slot
insert into schedule_slot (schedule, slot, job_id, fired_at) values (:name, :slot, :job, :now)
on conflict do nothing returning slot

-- Third step, behind the jobs themselves.
-- name: skip_slot
update schedule_slot set skipped = 1, job_id = :job where schedule = :name and slot = :slot returning slot

-- name: advance_schedule
update schedule
   set next_at = max(next_at, :next_at), last_slot = coalesce(:slot, last_slot), last_job = coalesce(:job, last_job),
       last_skipped = coalesce(:skipped, last_skipped)
 where name = :name returning name

-- name: schedule_slots
select slot, fired_at, job_id, skipped from schedule_slot where schedule = :name order by slot desc limit :n

-- name: prune_slots
delete from schedule_slot where (schedule, slot) in (
    select schedule, slot from schedule_slot where fired_at < :now - cast(1000000 * :keep as integer) order by fired_at limit :n)
returning slot

-- -- shares ------------------------------------------------------------------------------------------------------

-- name: look_at_shares
select q.name, q.max_workers, q.paused, exists (select 1 from json_each(me.queues) where value = q.name), s.workers,
       s.applied, s.running,
       (select count(*) from pod o where o.id <> me.id and o.capacity > 0
           and exists (select 1 from json_each(o.queues) where value = q.name)),
       exists (select 1 from share o where o.queue = q.name and o.pod <> me.id)
  from pod me cross join queue q left join share s on s.pod = me.id and s.queue = q.name
 where me.id = :pod and (s.pod is not null or q.name in (select value from json_each(:queues)))

-- name: report_share
insert into share (pod, queue, workers, applied, running)
select id, :queue, :workers, :applied, :running from pod where id = :pod
on conflict (pod, queue) do update set running = excluded.running,
    applied = iif(workers is excluded.workers, excluded.applied, applied)
returning queue, applied

-- name: totals
select name, max_workers from queue

-- name: members
select id, queues, capacity from pod

-- name: shares
select pod, queue, workers, applied, running from share

-- name: assign_share
insert into share (pod, queue, workers, term) select id, :queue, :workers, :term from pod where id = :pod
on conflict (pod, queue) do update set workers = excluded.workers, term = excluded.term

-- name: remove_share
delete from share where pod = :pod and queue = :queue

-- name: undeclared_queues
with recursive hop(queue) as (
    select (select queue from job indexed by job_claim where status in ('pending', 'failed') order by queue limit 1)
    union all
    select (select j.queue from job j indexed by job_claim where j.status in ('pending', 'failed') and j.queue > hop.queue
             order by j.queue limit 1)
      from hop where hop.queue is not null
)
select n.queue, exists (select 1 from hop h where h.queue = n.queue)
  from (select queue from hop where queue is not null union select name from queue) n
 where not exists (select 1 from pod p, json_each(p.queues) e where e.value = n.queue) order by n.queue

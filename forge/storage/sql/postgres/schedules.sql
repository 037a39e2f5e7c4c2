-- part: schedule_columns
s.name, s.expression, s.kind, s.payload, s.timezone, s.queue, s.priority, s.max_attempts, s.timeout, s.keep_result,
s.dedupe_key, s.unique_for, s.tags, s.catch_up, s.jitter, s.source, s.line, s.project, s.paused, s.disabled, s.next_at,
s.last_fire_time, s.last_job, s.last_skipped, s.revision, s.paused_at, s.pauses::text

-- name: schedules
select {schedule_columns} from forge.schedule s order by s.name

-- name: schedule
select {schedule_columns} from forge.schedule s where s.name = :name

-- Due ones, the longest due first, with the next fire time of all and the time by which they are due: one row at least,
-- without a name if there is none.
-- name: due_schedules
select {schedule_columns},
       (select min(a.next_at) from forge.schedule a where not a.paused and a.disabled is null), c.now
  from (select now() as now) c left join lateral (
    select * from forge.schedule d where not d.paused and d.disabled is null and d.next_at <= c.now
     order by d.next_at, d.name limit :n::bigint) s on true
 order by s.next_at, s.name

-- Add a schedule or change one of the sources :over, if there is anything to change. What it says of time decides
-- whether its next fire time is found anew.
-- name: put_schedule
insert into forge.schedule as s (name, expression, kind, payload, timezone, queue, priority, max_attempts, timeout,
                                 keep_result, dedupe_key, unique_for, tags, catch_up, jitter, source, line, project,
                                 disabled, next_at)
values (:name, :expression, :kind, :payload::text::json, :timezone, :queue, :priority::smallint,
        :max_attempts::smallint, :timeout::int, :keep_result::int, :dedupe_key::text, :unique_for::int, :tags::text[],
        :catch_up, :jitter::float8, :source, :line::text::json, :project, :disabled::text, :next_at::timestamptz)
on conflict (name) do update set
    expression = excluded.expression, kind = excluded.kind, payload = excluded.payload, timezone = excluded.timezone,
    queue = excluded.queue, priority = excluded.priority, max_attempts = excluded.max_attempts,
    timeout = excluded.timeout, keep_result = excluded.keep_result, dedupe_key = excluded.dedupe_key,
    unique_for = excluded.unique_for, tags = excluded.tags, catch_up = excluded.catch_up, jitter = excluded.jitter,
    source = excluded.source, line = excluded.line, project = excluded.project, revision = s.revision + 1,
    disabled = case when (s.expression, s.timezone) = (excluded.expression, excluded.timezone) then s.disabled
                    else excluded.disabled end,
    next_at = case when (s.expression, s.timezone) = (excluded.expression, excluded.timezone) then s.next_at
                   else excluded.next_at end
 where s.source = any(:over::text[])
   and (s.expression, s.kind, s.payload::text, s.timezone, s.queue, s.priority, s.max_attempts, s.timeout,
        s.keep_result, s.dedupe_key, s.unique_for, s.tags, s.catch_up, s.jitter, s.source, s.line::text, s.project)
       is distinct from
       (excluded.expression, excluded.kind, excluded.payload::text, excluded.timezone, excluded.queue,
        excluded.priority, excluded.max_attempts, excluded.timeout, excluded.keep_result, excluded.dedupe_key,
        excluded.unique_for, excluded.tags, excluded.catch_up, excluded.jitter, excluded.source, excluded.line::text,
        excluded.project)
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

-- Firing, first step: the schedule is still what it was when its fire times were found, and nobody else fires it now.
-- name: lock_schedule
select next_at from forge.schedule
 where name = :name and revision = :revision::bigint and not paused and disabled is null for no key update

-- Second step: a fire time that has fired before is not among those answered.
-- name: take_fire_times
insert into forge.schedule_fire_time (schedule, fire_time, job_id)
select :name, t.fire_time, t.job_id from unnest(:fire_times::timestamptz[], :jobs::uuid[]) t(fire_time, job_id)
on conflict do nothing returning fire_time

-- Third step, behind the jobs themselves.
-- name: skip_fire_time
update forge.schedule_fire_time set skipped = true, job_id = :job::uuid
 where schedule = :name and fire_time = :fire_time::timestamptz
returning fire_time

-- name: advance_schedule
update forge.schedule
   set next_at = greatest(next_at, :next_at::timestamptz),
       last_fire_time = coalesce(:fire_time::timestamptz, last_fire_time),
       last_job = coalesce(:job::uuid, last_job), last_skipped = coalesce(:skipped::boolean, last_skipped)
 where name = :name returning name

-- name: schedule_fire_times
select fire_time, fired_at, job_id, skipped from forge.schedule_fire_time where schedule = :name order by fire_time desc
 limit :n::bigint

-- name: prune_fire_times
delete from forge.schedule_fire_time where (schedule, fire_time) in (
    select schedule, fire_time from forge.schedule_fire_time
     where fired_at < now() - make_interval(secs => :keep::float8)
     order by fired_at limit :n::bigint) returning fire_time

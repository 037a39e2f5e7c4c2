-- part: schedule_columns
s.name, s.expression, s.kind, s.payload, s.timezone, s.queue, s.priority, s.max_attempts, s.timeout, s.keep_result,
s.dedupe_key, s.unique_for, s.tags, s.catch_up, s.jitter, s.source, s.line, s.project, s.paused, s.disabled, s.next_at,
s.last_fire_time, s.last_job, s.last_skipped, s.revision, s.paused_at, s.pauses

-- name: schedules
select {schedule_columns} from forge_schedule s order by s.name

-- name: schedule
select {schedule_columns} from forge_schedule s where s.name = :name

-- Due ones, the longest due first, with the next fire time of all and the time by which they are due: one row at least,
-- without a name if there is none.
-- name: due_schedules
select {schedule_columns},
       (select min(a.next_at) from forge_schedule a where not a.paused and a.disabled is null), c.now
  from (select :now as now) c left join (
    select * from forge_schedule where not paused and disabled is null and next_at <= :now
     order by next_at, name limit :n) s
 order by s.next_at, s.name

-- Add a schedule or change one of the sources :over, if there is anything to change. What it says of time decides
-- whether its next fire time is found anew.
-- name: put_schedule
insert into forge_schedule as s (name, expression, kind, payload, timezone, queue, priority, max_attempts, timeout,
                                 keep_result, dedupe_key, unique_for, tags, catch_up, jitter, source, line, project,
                                 disabled, next_at)
values (:name, :expression, :kind, :payload, :timezone, :queue, :priority, :max_attempts, :timeout, :keep_result,
        :dedupe_key, :unique_for, :tags, :catch_up, :jitter, :source, :line, :project, :disabled, :next_at)
on conflict (name) do update set
    expression = excluded.expression, kind = excluded.kind, payload = excluded.payload, timezone = excluded.timezone,
    queue = excluded.queue, priority = excluded.priority, max_attempts = excluded.max_attempts,
    timeout = excluded.timeout, keep_result = excluded.keep_result, dedupe_key = excluded.dedupe_key,
    unique_for = excluded.unique_for, tags = excluded.tags, catch_up = excluded.catch_up, jitter = excluded.jitter,
    source = excluded.source, line = excluded.line, project = excluded.project, revision = s.revision + 1,
    disabled = iif((s.expression, s.timezone) = (excluded.expression, excluded.timezone), s.disabled,
                   excluded.disabled),
    next_at = iif((s.expression, s.timezone) = (excluded.expression, excluded.timezone), s.next_at, excluded.next_at)
 where s.source in (select value from json_each(:over))
   and (s.expression, s.kind, s.payload, s.timezone, s.queue, s.priority, s.max_attempts, s.timeout, s.keep_result,
        s.dedupe_key, s.unique_for, s.tags, s.catch_up, s.jitter, s.source, s.line, s.project)
       is not
       (excluded.expression, excluded.kind, excluded.payload, excluded.timezone, excluded.queue, excluded.priority,
        excluded.max_attempts, excluded.timeout, excluded.keep_result, excluded.dedupe_key, excluded.unique_for,
        excluded.tags, excluded.catch_up, excluded.jitter, excluded.source, excluded.line, excluded.project)
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

-- Firing, first step: the schedule is still what it was when its fire times were found.
-- name: lock_schedule
select next_at from forge_schedule where name = :name and revision = :revision and not paused and disabled is null

-- Second step: a fire time that has fired before is not answered.
-- name: take_fire_time
insert into forge_schedule_fire_time (schedule, fire_time, job_id, fired_at) values (:name, :fire_time, :job, :now)
on conflict do nothing returning fire_time

-- Third step, behind the jobs themselves.
-- name: skip_fire_time
update forge_schedule_fire_time set skipped = 1, job_id = :job where schedule = :name and fire_time = :fire_time
returning fire_time

-- name: advance_schedule
update forge_schedule
   set next_at = max(next_at, :next_at), last_fire_time = coalesce(:fire_time, last_fire_time),
       last_job = coalesce(:job, last_job),
       last_skipped = coalesce(:skipped, last_skipped)
 where name = :name returning name

-- name: schedule_fire_times
select fire_time, fired_at, job_id, skipped from forge_schedule_fire_time where schedule = :name order by fire_time desc
 limit :n

-- name: prune_fire_times
delete from forge_schedule_fire_time where (schedule, fire_time) in (
    select schedule, fire_time from forge_schedule_fire_time where fired_at < :now - cast(1000000 * :keep as integer)
     order by fired_at limit :n)
returning fire_time

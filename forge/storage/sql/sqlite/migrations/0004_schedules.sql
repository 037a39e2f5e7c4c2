-- What is enqueued by the clock. `next_at` is the next fire time, in UTC whatever the zone; a row whose fire time is
-- past is due.
create table forge_schedule (
    name           text not null primary key,
    next_at        integer,                     -- null: it has none, see disabled
    last_fire_time integer,
    last_job       blob,                        -- of that fire time; of a skipped one, the job that was still active
    revision       integer not null default 1,  -- of what it says: whoever fires has read this one
    jitter         real not null default 0,
    timeout        integer not null default 600,
    unique_for     integer,
    keep_result    integer,
    priority       integer not null default 0,
    max_attempts   integer not null default 5,
    paused         integer not null default 0 check (paused in (0, 1)),
    last_skipped   integer not null default 0 check (last_skipped in (0, 1)),
    kind           text not null,
    queue          text not null,
    expression     text not null,
    timezone       text not null default 'UTC',
    catch_up       text not null default 'one' check (catch_up in ('one', 'all', 'none')),
    source         text not null default 'runtime' check (source in ('config', 'code', 'runtime')),
    project        text not null default '',    -- whose it is, if it is declared: nobody else removes it
    payload        text not null check (json_valid(payload)),
    dedupe_key     text,
    tags           text,
    disabled       text                         -- why it cannot come due
) strict;
create index forge_schedule_due on forge_schedule (next_at) where not paused and disabled is null;

-- Every fire time that has fired. It is what makes a second firing impossible, so it outlives its schedule; rows go
-- when they are old, and a fire time before its schedule's next_at does not fire either.
create table forge_schedule_fire_time (
    schedule  text not null,
    fire_time integer not null,
    fired_at  integer not null,
    job_id    blob not null,
    skipped   integer not null default 0 check (skipped in (0, 1)),  -- an earlier job was still active: it is job_id
    primary key (schedule, fire_time)
) strict, without rowid;
create index forge_schedule_fire_time_fired on forge_schedule_fire_time (fired_at);

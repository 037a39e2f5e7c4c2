-- What is enqueued by the clock. `next_at` is the next fire time, in UTC whatever the zone; a row whose fire time is
-- past is due.
create table forge.schedule (
    name           text collate "C" primary key,
    next_at        timestamptz,                -- null: it has none, see disabled
    last_fire_time timestamptz,
    last_job       uuid,                       -- of that fire time; of a skipped one, the job that was still active
    revision       bigint not null default 1,  -- of what it says: whoever fires has read this one
    jitter         double precision not null default 0,
    timeout        integer not null default 600,
    unique_for     integer,
    keep_result    integer,
    priority       smallint not null default 0,
    max_attempts   smallint not null default 5,
    paused         boolean not null default false,
    last_skipped   boolean not null default false,
    kind           text collate "C" not null,
    queue          text collate "C" not null,
    expression     text not null,
    timezone       text not null default 'UTC',
    catch_up       text not null default 'one' check (catch_up in ('one', 'all', 'none')),
    source         text not null default 'runtime' check (source in ('config', 'code', 'runtime')),
    project        text not null default '',   -- whose it is, if it is declared: nobody else removes it
    payload        json not null,
    dedupe_key     text collate "C",
    tags           text[],
    disabled       text                        -- why it cannot come due
);
create index schedule_due on forge.schedule (next_at) where not paused and disabled is null;

-- Every fire time that has fired. It is what makes a second firing impossible, so it outlives its schedule; rows go
-- when they are old, and a fire time before its schedule's next_at does not fire either.
create table forge.schedule_fire_time (
    schedule  text collate "C" not null,
    fire_time timestamptz not null,
    fired_at  timestamptz not null default now(),
    job_id    uuid not null,
    skipped   boolean not null default false,  -- the job of an earlier fire time was still active: it is job_id
    primary key (schedule, fire_time)
);
create index schedule_fire_time_fired on forge.schedule_fire_time (fired_at);

-- What may still run, what has ended, who runs it, and how queues are set.
-- `forge.` is the schema; it is replaced when another is configured.

create schema if not exists forge;

create table forge.migration (
    number     integer primary key,
    title      text not null,
    applied_at timestamptz not null default now()
);

create type forge.job_status as enum ('pending', 'failed', 'in_progress', 'done', 'dead', 'cancelled');

-- Live jobs only: pending, failed (waiting to retry), in_progress. An ended job is moved to job_history in the
-- statement that ends it, so this table stays as small as the work that is left.
-- Columns stand in order of alignment, the wide ones first: no padding. Rare ones are null and cost a bit each.
create table forge.job (
    id                  uuid primary key,
    run_at              timestamptz not null default now(),
    enqueued_at         timestamptz not null default now(),
    claimed_at          timestamptz,
    cancel_requested_at timestamptz,
    -- The token of the claim: pod number << 32 | number of the claim within that pod's life. It is the owner too.
    claim               bigint,
    timeout             integer not null default 600,
    unique_for          integer,
    keep_result         integer,
    status              forge.job_status not null default 'pending',
    priority            smallint not null default 0,
    attempts            smallint not null default 0,
    max_attempts        smallint not null default 5,
    crashes             smallint not null default 0,
    concurrency         smallint,            -- how many claims of its concurrency_key there may be
    -- Of a job that is claimed and has such a key: which of those claims this one is; null behind another of a chain.
    place               smallint check (place is null or status = 'in_progress'),
    queue               text collate "C" not null,
    kind                text collate "C" not null,
    payload             json not null,
    dedupe_key          text collate "C",
    tags                text[],
    errors              jsonb,
    line                text collate "C",    -- null: a plain job, which waits for nothing but its turn
    rate_limit          text collate "C",
    concurrency_key     text collate "C"
) with (
    -- A claim writes a second version of the row beside the first: half-filled pages keep it on the same page, which
    -- logs only what changed (1,171 bytes of WAL a job instead of 1,370, from insert to history).
    fillfactor = 50,
    -- Every claim rewrites its row and every end deletes it: vacuum early and often, it is cheap while the table
    -- is small, and let it analyse rarely: the statements are written so that statistics do not matter.
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0.5, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.2, autovacuum_analyze_threshold = 20000
);

-- The claim. No index has a column that a claim changes (status, claim), neither as key nor in its condition: so the
-- new version of a claimed row stays on its page and no index is touched (10 µs a claimed job became 5.5). The price:
-- claimed jobs stay in the index until they end, and a scan from the start reads past them; and who looks for all
-- claims of a pod, which happens when one has died, reads the whole table.
create index job_claim on forge.job (queue, priority, run_at, id) where line is null;
-- Jobs in lines, which wait in one of their own: see claim_lines. Plain jobs are in none of these. A claim that takes a
-- place of a key leaves the first two; others change none of their columns, and stay until they end.
create index job_line on forge.job (queue, line, priority, run_at, id) where line is not null and place is null;
create index job_line_due on forge.job (queue, run_at) where line is not null and place is null;
-- Why a limit holds whatever anybody does: no two claims of a key have the same place.
create unique index job_place on forge.job (concurrency_key, place) where place > 0;
-- Those that run and have a place; to be counted.
create index job_in_line on forge.job (queue) where place is not null;
-- What an owner polls; empty but for jobs that somebody is cancelling.
create index job_cancel on forge.job (cancel_requested_at) where cancel_requested_at is not null;

-- Append-only. `claim` is kept: a finalize whose answer was lost finds there that it had succeeded.
create table forge.job_history (
    id           uuid primary key,
    run_at       timestamptz not null,
    enqueued_at  timestamptz not null,
    claimed_at   timestamptz,
    finished_at  timestamptz not null default now(),
    cancel_requested_at timestamptz,
    claim        bigint,
    timeout      integer not null,
    unique_for   integer,
    keep_result  integer,
    status       forge.job_status not null,
    priority     smallint not null,
    attempts     smallint not null,
    max_attempts smallint not null,
    crashes      smallint not null,
    concurrency  smallint,
    queue        text collate "C" not null,
    kind         text collate "C" not null,
    payload      json not null,
    dedupe_key   text collate "C",
    tags         text[],
    errors       jsonb,
    result       json,
    line         text collate "C",
    rate_limit   text collate "C",
    concurrency_key text collate "C"
) with (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.2);

-- No index on finished_at: retention walks the primary key, whose ids begin with the time (2 µs a job less).
-- The few that people look for among millions of done ones.
create index job_history_unhappy on forge.job_history (id) where status in ('dead', 'cancelled');

-- One row per dedupe key that is taken. A table of its own and not a unique index on job, because a key can
-- outlive its job (unique_for), and because an upsert of one row has no window between looking and taking.
create table forge.job_key (
    key        text collate "C" primary key,
    job_id     uuid not null,
    held_until timestamptz               -- null while the job is active
);
create index job_key_held on forge.job_key (held_until) where held_until is not null;

create table forge.queue (
    name                 text collate "C" primary key,
    max_workers          integer not null default 1,
    paused               boolean not null default false,
    backoff_enabled      boolean not null default false,
    backoff_base_seconds integer not null default 60,
    backoff_max_seconds  integer not null default 1800,
    throttle             text not null default 'queue' check (throttle in ('queue', 'hint')),
    retain_done_days     double precision not null default 7,
    retain_dead_days     double precision not null default 30,
    throttle_attempts    integer not null default 0,
    throttled_until      timestamptz,
    -- Somebody may be asleep: enqueue notifies. Cleared while a dispatcher is saturated, because NOTIFY
    -- serialises the commits of all producers.
    wake                 boolean not null default true
);

create table forge.pod (
    id         integer generated always as identity primary key,
    name       text not null,
    host       text not null,
    pid        integer not null,
    queues     text[] not null,
    started_at timestamptz not null default now(),
    beat_at    timestamptz not null default now(),
    -- Taken for dead, or leaving: it claims no more, and the row goes when all its claims have been taken back.
    reaped_at  timestamptz
);

-- Idle pods that would take a job of a queue at once: who stores one claims it for such a pod, in the same statement,
-- and sends it there. Losing these rows loses nothing but a millisecond, so they are not logged.
create unlogged table forge.offer (
    queue       text collate "C" not null,
    number      bigint generated always as identity,  -- the oldest is taken first, so pods take turns
    claim       bigint not null,                      -- the token of the claim to be, and so the pod
    channel     text not null,                        -- where the pod listens
    beat_within real not null,                        -- seconds: of a pod silent for longer no offer is taken
    primary key (queue, number)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50);

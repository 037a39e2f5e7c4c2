-- What may still run, what has ended, who runs it, and how queues are set: the twin of PostgreSQL's, column by column.
-- Ids are the 16 bytes of a UUID, times are microseconds since 1970 UTC, lists and payloads are JSON text, and a
-- statement ends at a line that ends in a semicolon.

create table forge_migration (
    number     integer primary key,
    title      text not null,
    applied_at integer not null
) strict;

-- Live jobs only: pending, failed (waiting to retry), in_progress. An ended job is moved to forge_job_history in the
-- transaction that ends it.
-- With a rowid: keyed by the id alone (WITHOUT ROWID), bulk enqueue fell from 155k to 105k jobs/s and the claim, which
-- then has to find each row by 16 bytes again, gained nothing.
create table forge_job (
    id                  blob not null primary key,
    run_at              integer not null,
    enqueued_at         integer not null,
    claimed_at          integer,
    cancel_requested_at integer,
    -- The token of the claim: pod number << 32 | number of the claim within that pod's life. It is the owner too.
    claim               integer,
    timeout             integer not null default 600,
    unique_for          integer,
    keep_result         integer,
    status              text not null default 'pending',
    priority            integer not null default 0,
    attempts            integer not null default 0,
    max_attempts        integer not null default 5,
    crashes             integer not null default 0,
    concurrency         integer,             -- how many claims of its concurrency_key there may be
    -- Of a job that is claimed and has such a key: which of those claims this one is; null behind another of a chain.
    place               integer check (place is null or status = 'in_progress'),
    queue               text not null,
    kind                text not null,
    payload             text not null check (json_valid(payload)),
    dedupe_key          text,
    tags                text,
    errors              text,
    line                text,                -- null: a plain job, which waits for nothing but its turn
    rate_limit          text,
    concurrency_key     text
) strict;

-- The claim. Status stands in the predicate, never in the key: a claimed job leaves the index.
create index forge_job_claim on forge_job (queue, priority, run_at, id)
    where line is null and status in ('pending', 'failed');
-- Jobs in lines, which wait in one of their own.
create index forge_job_line on forge_job (queue, line, priority, run_at, id)
    where line is not null and status in ('pending', 'failed');
create index forge_job_line_due on forge_job (queue, run_at) where line is not null and status in ('pending', 'failed');
-- Why a limit holds whatever anybody does: no two claims of a key have the same place.
create unique index forge_job_place on forge_job (concurrency_key, place) where place > 0;
-- Whose claims are whose: a pod's are one range.
create index forge_job_claimed on forge_job (claim) where claim is not null;
-- What an owner polls; empty but for jobs that somebody is cancelling.
create index forge_job_cancel on forge_job (claim) where cancel_requested_at is not null;

-- Append-only.
create table forge_job_history (
    id           blob not null primary key,
    run_at       integer not null,
    enqueued_at  integer not null,
    claimed_at   integer,
    finished_at  integer not null,
    cancel_requested_at integer,
    claim        integer,
    timeout      integer not null,
    unique_for   integer,
    keep_result  integer,
    status       text not null,
    priority     integer not null,
    attempts     integer not null,
    max_attempts integer not null,
    crashes      integer not null,
    concurrency  integer,
    queue        text not null,
    kind         text not null,
    payload      text not null,
    dedupe_key   text,
    tags         text,
    errors       text,
    result       text check (result is null or json_valid(result)),
    line         text,
    rate_limit   text,
    concurrency_key text
) strict;

-- Retention walks this; rows come in its order, so the last page takes every insert.
create index forge_job_history_finished on forge_job_history (finished_at);
-- The few that people look for among millions of done ones.
create index forge_job_history_unhappy on forge_job_history (id) where status in ('dead', 'cancelled');

-- One row per dedupe key that is taken: a key can outlive its job (unique_for).
create table forge_job_key (
    key        text not null primary key,
    job_id     blob not null,
    held_until integer                   -- null while the job is active
) strict, without rowid;
create index forge_job_key_held on forge_job_key (held_until) where held_until is not null;

create table forge_queue (
    name                 text not null primary key,
    max_workers          integer not null default 1,
    paused               integer not null default 0 check (paused in (0, 1)),
    backoff_enabled      integer not null default 0 check (backoff_enabled in (0, 1)),
    backoff_base_seconds integer not null default 60,
    backoff_max_seconds  integer not null default 1800,
    throttle             text not null default 'queue' check (throttle in ('queue', 'hint')),
    retain_done_days     real not null default 7,
    retain_dead_days     real not null default 30,
    throttle_attempts    integer not null default 0,
    throttled_until      integer,
    -- Kept as an operator or dispatcher set it; nothing here notifies, listeners watch the file itself.
    wake                 integer not null default 1 check (wake in (0, 1))
) strict, without rowid;

-- Autoincrement: a pod's number is never issued again, and neither are the tokens made of it.
create table forge_pod (
    id         integer primary key autoincrement,
    name       text not null,
    host       text not null,
    pid        integer not null,
    queues     text not null,
    started_at integer not null,
    beat_at    integer not null
) strict;

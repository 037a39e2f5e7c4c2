-- Figures by the minute: see PostgreSQL's.
create table forge_metric_part (
    minute    integer not null,
    pod       integer not null,
    queue     text not null,
    completed integer not null default 0,
    failed    integer not null default 0,
    throttled integer not null default 0,
    snoozed   integer not null default 0,
    crashed   integer not null default 0,
    cancelled integer not null default 0,
    dead      integer not null default 0,
    reaped    integer not null default 0,
    latency   text not null default '{}',
    run_time  text not null default '{}',
    primary key (minute, pod, queue)
) strict, without rowid;

create table forge_metric (
    minute    integer not null,
    queue     text not null,
    completed integer not null default 0,
    failed    integer not null default 0,
    throttled integer not null default 0,
    snoozed   integer not null default 0,
    crashed   integer not null default 0,
    cancelled integer not null default 0,
    dead      integer not null default 0,
    reaped    integer not null default 0,
    latency   text not null default '{}',
    run_time  text not null default '{}',
    enqueued  integer,
    pending   integer,
    scheduled integer,
    in_flight integer,
    retrying  integer,
    dead_jobs integer,
    oldest    real,
    estimated integer,
    primary key (minute, queue)
) strict, without rowid;

create table forge_metric_pod (
    minute      integer not null,
    pod         integer not null,
    host        text not null,
    pid         integer not null,
    workers     integer not null,
    connections integer not null,
    master_cpu  real, zygote_cpu real, workers_cpu real,
    master_rss  integer, zygote_rss integer, workers_rss integer,
    master_pss  integer, zygote_pss integer, workers_pss integer,
    claims      text not null default '{}',
    finalizes   text not null default '{}',
    beats       text not null default '{}',
    primary key (minute, pod)
) strict, without rowid;

create table forge_metric_database (
    minute       integer primary key,
    size         integer not null,
    job_size     integer,
    history_size integer,
    job_dead     integer,
    history_dead integer
) strict;

create table forge_metric_writer (
    writer text not null primary key,
    number integer not null,
    at     integer not null
) strict, without rowid;

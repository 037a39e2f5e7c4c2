-- Queues in which there are, or have been, jobs in lines: only there does a pod look for some.
create table forge_line_queue (
    queue text not null primary key
) strict, without rowid;

-- The line of its jobs: [name, rate_limit, concurrency_key, concurrency].
alter table forge_schedule add column line text;

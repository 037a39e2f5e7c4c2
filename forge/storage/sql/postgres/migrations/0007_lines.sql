-- Queues in which there are, or have been, jobs in lines: only there does a pod look for some. Not a column of `queue`,
-- whose rows are made by pods, with their settings.
create table forge.line_queue (
    queue text collate "C" primary key
);

-- The line of its jobs: [name, rate_limit, concurrency_key, concurrency].
alter table forge.schedule add column line json;

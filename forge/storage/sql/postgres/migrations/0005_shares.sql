-- How the workers of each queue are split over pods. A few rows that change when pods come and go: `workers` is written
-- by the leader under its term, `applied` and `running` by the pod itself. They go with the pod.
alter table forge.pod add column capacity integer not null default 1;
-- A name for people.
alter table forge.pod add column label text;

create table forge.share (
    pod     integer not null references forge.pod (id) on delete cascade,
    queue   text collate "C" not null,
    workers integer,                     -- what the leader gives; null: no word from it yet
    applied integer not null default 0,  -- the limit that the pod goes by
    running integer not null default 0,  -- workers that it has
    term    bigint,                      -- of the leader that gave it
    primary key (pod, queue)
);
create index share_queue on forge.share (queue, pod);

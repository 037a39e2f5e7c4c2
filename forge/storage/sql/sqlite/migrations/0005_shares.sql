-- How the workers of each queue are split over pods: see PostgreSQL's. Foreign keys are off unless a connection turns
-- them on.
alter table forge_pod add column capacity integer not null default 1;
alter table forge_pod add column label text;

create table forge_share (
    pod     integer not null,
    queue   text not null,
    workers integer,
    applied integer not null default 0,
    running integer not null default 0,
    term    integer,
    primary key (pod, queue)
) strict, without rowid;
create index forge_share_queue on forge_share (queue, pod);
create trigger forge_share_of_a_pod_that_is_gone after delete on forge_pod
begin delete from forge_share where pod = old.id; end;

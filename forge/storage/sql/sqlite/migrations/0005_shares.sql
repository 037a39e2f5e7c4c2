-- How the workers of each queue are split over pods: see PostgreSQL's. Foreign keys are off unless a connection turns them on.
alter table pod add column capacity integer not null default 1;
alter table pod add column label text;

create table share (
    pod     integer not null,
    queue   text not null,
    workers integer,
    applied integer not null default 0,
    running integer not null default 0,
    term    integer,
    primary key (pod, queue)
) strict, without rowid;
create index share_queue on share (queue, pod);
create trigger share_of_a_pod_that_is_gone after delete on pod begin delete from share where pod = old.id; end;

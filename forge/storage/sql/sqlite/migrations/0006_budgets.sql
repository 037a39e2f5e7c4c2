-- Budgets that all pods share: see PostgreSQL's.
create table forge_budget (
    scope             text not null primary key,
    at                integer not null,
    capacity          integer not null,
    refill_per_sec    real not null,
    tokens            real not null,
    drains            integer not null default 0,
    declared_capacity integer,
    declared_refill   real
) strict;

create table forge_budget_lease (
    scope     text not null,
    pod       integer not null,
    tokens    integer not null,
    spent     integer not null,
    number    integer not null,
    drains    integer not null,
    leased_at integer not null,
    until     integer not null,
    primary key (scope, pod)
) strict, without rowid;

-- Which pod leads: one row, in which each new leader gets a term higher than all before.
create table forge_leader (
    one        integer primary key check (one = 1),
    term       integer not null,
    holder     text,                     -- null: given back
    pod        integer,                  -- null: a command, not a pod
    host       text not null default '',
    pid        integer not null default 0,
    since      integer not null default 0,
    renewed_at integer not null default 0,
    until      integer not null default 0
) strict;
insert into forge_leader (one, term) values (1, 0);

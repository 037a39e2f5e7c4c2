-- Which pod leads: one row, in which each new leader gets a term higher than all before.
--
-- The term is a key on purpose. A leader's write locks the row FOR KEY SHARE: that waits for nobody who renews the
-- lease (no key changes), while whoever takes it over changes the key, and so waits for such writes to commit or to be
-- undone.
create table forge.leader (
    term       bigint primary key,
    one        boolean not null unique default true check (one),
    holder     text,                     -- null: given back
    pod        integer,                  -- null: a command, not a pod
    host       text not null default '',
    pid        integer not null default 0,
    since      timestamptz not null default now(),
    renewed_at timestamptz not null default now(),
    until      timestamptz not null default now()
);
insert into forge.leader (term) values (0);

-- Who leads: one row.
create table forge.leader (
    term  bigint primary key,
    pod   integer not null,
    until timestamptz not null
);

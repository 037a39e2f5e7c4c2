-- Who leads: one row.
create table leader (
    term  integer primary key,
    pod   integer not null,
    until integer not null
) strict;

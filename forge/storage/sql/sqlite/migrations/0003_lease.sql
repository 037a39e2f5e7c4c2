-- Stands in for the lease: one row, so that a leader's write has a term to be checked against.
create table leader (
    term  integer not null,
    pod   integer,
    until integer
) strict;
insert into leader (term) values (0);

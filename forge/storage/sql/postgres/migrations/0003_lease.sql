-- Stands in for the lease: one row, so that a leader's write has a term to be checked against.
create table forge.leader (
    term  bigint not null,
    pod   integer,
    until timestamptz
);
insert into forge.leader (term) values (0);

-- Budgets that all pods share. A row is one bucket: `tokens` were in it `at` that time. It is locked for every change
-- of the bucket and of its leases, and changed a few times a second at most, in place: no index has what changes.
create table forge.budget (
    scope             text collate "C" primary key,
    at                timestamptz not null default clock_timestamp(),
    capacity          bigint not null,
    refill_per_sec    double precision not null,
    tokens            double precision not null,
    drains            bigint not null default 0, -- how often it was drained: a lease from before is worth nothing
    declared_capacity bigint,                    -- what settings last said; null: nothing
    declared_refill   double precision
) with (fillfactor = 50);

-- What pods may spend. A row outlives its pod, because that may go on spending until the lease has lapsed.
create table forge.budget_lease (
    scope     text collate "C" not null,
    pod       integer not null,
    tokens    bigint not null,      -- leased, and not yet said to have been spent
    spent     bigint not null,      -- by the pod since it was registered, as it last said
    number    bigint not null,      -- of the request that wrote this: an earlier one that comes late changes nothing
    drains    bigint not null,      -- of the budget, then
    leased_at timestamptz not null,
    until     timestamptz not null,
    primary key (scope, pod)
) with (fillfactor = 50);

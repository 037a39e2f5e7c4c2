-- The lease is free if it was given back or has lapsed, is the asker's own, or its pod is no more. One that was renewed
-- further in the future than a TTL has lapsed too: the clock was set back.
-- name: acquire_lease
update forge_leader set term = term + 1, holder = :key, pod = :pod, host = :host, pid = :pid, since = :now,
    renewed_at = :now,
                  until = :until
 where holder is null or until <= :now or renewed_at > :until or holder = :key
    or (pod is not null and not exists (select 1 from forge_pod p where p.id = forge_leader.pod))
returning term

-- The row again, if somebody has emptied the table. Terms must not come twice, and the last one is not known any more:
-- the seconds since 1970 are more than there ever were.
-- name: restore_lease
insert or ignore into forge_leader (one, term) values (1, :now / 1000000)

-- name: lease_until
select until from forge_leader

-- name: renew_lease
update forge_leader set pod = :pod, renewed_at = :now, until = :until where term = :term and holder = :key

-- name: release_lease
update forge_leader set holder = null, until = :now where term = :term

-- name: leader
select term, pod, host, pid, since, until from forge_leader where holder is not null and until > :now

-- The first step of a leader's write: no row, no write.
-- name: hold_term
select term from forge_leader where term = :term and holder is not null

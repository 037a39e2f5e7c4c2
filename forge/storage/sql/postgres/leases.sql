-- A term must not be issued twice, so it is on disk before it is known: else a crash could take it back.
-- name: wait_for_disk
select set_config('synchronous_commit', 'on', true) where current_setting('synchronous_commit') = 'off'

-- A takeover waits for the writes of the term before. Not for long at a time: beats are on the same connection.
-- name: wait_a_moment
select set_config('lock_timeout', '1s', true)

-- The lease is free if it was given back or has lapsed, is the asker's own (whose earlier answer was lost), or its pod
-- is no more. One that was renewed in the future has lapsed too, or a clock set back by an hour would leave the cluster
-- without a leader for that hour; by less than the TTL it may only be that another statement began later and came
-- first.
-- name: acquire_lease
with taken as (
    update forge.leader l set term = l.term + 1, holder = :key, pod = :pod::int, host = :host, pid = :pid::int,
           since = now(), renewed_at = now(), until = now() + make_interval(secs => :ttl::float8)
     where l.holder is null or l.until <= now() or l.renewed_at > now() + make_interval(secs => :ttl::float8)
        or l.holder = :key
        or (l.pod is not null and not exists (select from forge.pod p where p.id = l.pod and p.reaped_at is null))
    returning l.term
)
select (select term from taken), extract(epoch from until - now())::float8 from forge.leader

-- The row again, if somebody has emptied the table. Terms must not come twice, and the last one is not known any more:
-- the seconds since 1970 are more than there ever were.
-- name: restore_lease
insert into forge.leader (term) values (extract(epoch from now())::bigint) on conflict do nothing

-- name: renew_lease
update forge.leader set pod = :pod::int, renewed_at = now(), until = now() + make_interval(secs => :ttl::float8)
 where term = :term::bigint and holder = :key

-- The others are told, so that one of them leads at once.
-- name: release_lease
update forge.leader set holder = null, until = now() where term = :term::bigint and holder is not null
returning pg_notify('forge.leader', '')::text

-- name: leader
select term, pod, host, pid, since, until from forge.leader where holder is not null and until > now()

-- The first statement of a leader's write: no row, no write. See the table for the lock.
-- name: hold_term
select term from forge.leader where term = :term::bigint and holder is not null for key share

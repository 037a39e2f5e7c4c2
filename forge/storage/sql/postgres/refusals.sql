-- name: wait_for_locks
select set_config('lock_timeout', :wait::text, :local::boolean)

-- Jobs whose row, or whose key's row, somebody has locked at this moment. What can be locked is let go of at once.
-- name: locked_jobs
with ours as materialized (
    select f.id, f.dedupe_key from forge.job f where f.id = any(:ids::uuid[])
), free as materialized (
    select f.id from forge.job f where f.id = any(:ids::uuid[]) for update skip locked
), their_keys as materialized (
    select k.key from forge.job_key k
     where k.key = any(array(select o.dedupe_key from ours o where o.dedupe_key is not null))
), free_keys as materialized (
    select k.key from forge.job_key k where k.key = any(array(select t.key from their_keys t)) for update skip locked
)
select o.id from ours o
 where not exists (select from free f where f.id = o.id)
    or o.dedupe_key in (select t.key from their_keys t where not exists (select from free_keys f where f.key = t.key))

-- Who has locked a job's row: its transaction is on the row. Not told where several share the lock.
-- name: lock_holder
select a.pid, a.application_name, coalesce(a.state, ''), extract(epoch from now() - a.xact_start)::float8
  from forge.job j join pg_locks l on l.locktype = 'transactionid' and l.transactionid = j.xmax and l.granted
  join pg_stat_activity a on a.pid = l.pid
 where j.id = :id::uuid and a.pid <> pg_backend_pid() limit 1

-- Who may hold what an ending needs besides its row, a key that is not yet committed for example: the oldest
-- transaction that has locked or written rows of these tables.
-- name: lock_suspect
select a.pid, a.application_name, coalesce(a.state, ''), extract(epoch from now() - a.xact_start)::float8
  from pg_locks l join pg_stat_activity a on a.pid = l.pid
 where l.locktype = 'relation' and l.granted and l.mode <> 'AccessShareLock' and a.pid <> pg_backend_pid()
   and l.database = (select d.oid from pg_database d where d.datname = current_database())
   and l.relation in ('forge.job'::regclass, 'forge.job_key'::regclass, 'forge.queue'::regclass,
                      'forge.line_queue'::regclass)
   and a.xact_start < now() - interval '3 s'
 order by a.xact_start limit 1

-- What an ending writes, to be undone: whether the database takes any.
-- name: try_history
insert into forge.job_history (id, run_at, enqueued_at, timeout, status, priority, attempts, max_attempts, crashes,
                               queue, kind, payload, result)
values (gen_random_uuid(), now(), now(), 0, 'done', 0, 0, 0, 0, '', '', 'null', to_json(:result::text))

-- name: try_job
delete from forge.job where id = gen_random_uuid()

-- name: register_pod
insert into forge.pod (name, host, pid, queues, capacity, label)
values (:name, :host, :pid::int, :queues::text[], :capacity::int, :label::text)
returning id, started_at, beat_at

-- name: beat
update forge.pod set beat_at = now() where id = :pod::int and reaped_at is null returning id

-- A beat and what the pod polls for at the same time: one row at least, without a pod if it is gone, and without a job
-- if nothing is to be cancelled. `> '-infinity'` and not `is not null`: a condition on the index's key makes it the one
-- that is used, even by who has no statistics.
-- name: pulse
with beat as (
    update forge.pod set beat_at = now() where id = :pod::int and reaped_at is null returning id
)
select p.id, r.id, r.claim from (select (select id from beat) as id) p left join lateral (
    select j.id, j.claim from forge.job j
     where j.cancel_requested_at > '-infinity' and j.claim >= :pod::bigint << 32
       and j.claim < (:pod::bigint + 1) << 32) r
    on p.id is not null

-- name: serve_queues
update forge.pod set queues = :queues::text[], capacity = :capacity::int where id = :pod::int

-- name: pods
select id, name, host, pid, queues, started_at, beat_at, capacity, label from forge.pod where reaped_at is null
 order by id

-- A pod goes in three steps, so that whoever dies between them leaves no claim without an owner: it is marked (and
-- claims no more), its claims are taken back, its row is deleted. `for update` waits for claims under way.
-- name: mark_pod
with gone as materialized (select id from forge.pod where id = :pod::int for update)
update forge.pod p set reaped_at = coalesce(p.reaped_at, now()) from gone where p.id = gone.id

-- Pods that have stopped beating, and those that were marked a while ago by somebody who did not come to the end. A
-- beat that came first makes this miss its row; one that comes later finds none. One that is claiming is looked at next
-- time.
-- name: mark_stale_pods
with gone as materialized (
    select id from forge.pod
     where beat_at < now() - make_interval(secs => :stale::float8) and reaped_at is null
        or reaped_at < now() - make_interval(secs => :unfinished::float8)
     order by id for update skip locked
)
update forge.pod p set reaped_at = now() from gone where p.id = gone.id returning p.id

-- The claims of pods that are gone; with :orphans those of pods nobody knows of, too. Reads the whole table, piece by
-- piece: see `in_piece`.
-- name: claims_of_pods
select id, claim, dedupe_key is not null, queue from forge.job j
 where {in_piece} and status = 'in_progress'
   and (claim >> 32 = any(:pods::bigint[])
        or :orphans::boolean and not exists (select from forge.pod p where p.id = j.claim >> 32))

-- name: remove_pods
with offers as (delete from forge.offer o where o.claim >> 32 = any(:pods::bigint[]))
delete from forge.pod where id = any(:pods::int[]) and reaped_at is not null

-- name: cancel_requests
select id, claim from forge.job
 where cancel_requested_at > '-infinity' and claim >= :pod::bigint << 32 and claim < (:pod::bigint + 1) << 32

-- The verbs of operators run planned by index too (locally), and bind rows by id wherever they join: a plan cached
-- while the tables were empty may not walk a backlog of millions.

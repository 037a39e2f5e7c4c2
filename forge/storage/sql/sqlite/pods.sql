-- name: register_pod
insert into forge_pod (name, host, pid, queues, started_at, beat_at, capacity, label)
values (:name, :host, :pid, :queues, :now, :now, :capacity, :label)
returning id

-- name: beat
update forge_pod set beat_at = :now where id = :pod

-- name: serve_queues
update forge_pod set queues = :queues, capacity = :capacity where id = :pod

-- name: deregister_pod
delete from forge_pod where id = :pod

-- name: pods
select id, name, host, pid, queues, started_at, beat_at, capacity, label from forge_pod order by id

-- The claims of one pod, for release: its tokens are one range.
-- name: claims_of_pod
select id, claim, dedupe_key is not null, queue from forge_job indexed by forge_job_claimed
 where claim >= :pod << 32 and claim < (:pod + 1) << 32 limit :limit

-- Pods that have stopped beating.
-- name: remove_stale_pods
delete from forge_pod where beat_at < :before returning id

-- Owners of claims that are no pod's: reaped ones that claimed once more before they knew. Hops from owner to owner.
-- name: orphan_owners
with recursive owner(id) as (
    select (select min(claim) >> 32 from forge_job indexed by forge_job_claimed where claim is not null)
    union all
    select (select min(claim) >> 32 from forge_job indexed by forge_job_claimed where claim >= (owner.id + 1) << 32)
      from owner where owner.id is not null
)
select id from owner where id is not null and not exists (select 1 from forge_pod p where p.id = owner.id)

-- name: cancel_requests
select id, claim from forge_job indexed by forge_job_cancel
 where cancel_requested_at is not null and claim >= :pod << 32 and claim < (:pod + 1) << 32

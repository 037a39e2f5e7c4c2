-- Each queue as one of its pods sees it. How many others declare it is counted only where that matters, which is while
-- pods come and go.
-- Behind `with me as (…)`. Lists of queues stand as subqueries, which are hashed: to look a name up in an array of
-- 3,000 for each of 3,000 queues took a third of a core.
-- part: shares_seen
select q.name, q.max_workers, q.paused, q.name in (select unnest(queues) from me), s.workers, s.applied, s.running,
       case when s.workers is null or not r.rivals
            then (select count(*) from forge.pod o
                   where o.id <> me.id and o.reaped_at is null and o.capacity > 0 and q.name = any(o.queues))
            else 0 end, r.rivals, exists (select from forge.line_queue l where l.queue = q.name)
  from me cross join forge.queue q
  left join forge.share s on s.pod = me.id and s.queue = q.name
 cross join lateral (
    select exists (select from forge.share o join forge.pod p on p.id = o.pod
                    where o.queue = q.name and o.pod <> me.id and p.reaped_at is null) as rivals) r
 where q.name in (select unnest(:queues::text[])) or s.pod is not null

-- What an idle pod does every second: one row at least, unless the pod is gone.
-- name: beat_and_look
with me as (
    update forge.pod set beat_at = now() where id = :pod::int and reaped_at is null returning id, queues
)
select seen.* from me left join ({shares_seen}) seen on true

-- name: look_at_shares
with me as (
    select id, queues from forge.pod where id = :pod::int and reaped_at is null
)
{shares_seen}

-- What a pod goes by from now on. If the leader has given another word since it looked, it goes by what it did before.
-- name: report_shares
insert into forge.share as s (pod, queue, workers, applied, running)
select p.id, t.queue, t.workers, t.applied, t.running
  from forge.pod p cross join unnest(:queues::text[], :workers::int[], :applied::int[], :running::int[])
                              t(queue, workers, applied, running)
 where p.id = :pod::int and p.reaped_at is null order by t.queue for key share of p
on conflict (pod, queue) do update set running = excluded.running,
    applied = case when s.workers is not distinct from excluded.workers then excluded.applied else s.applied end
returning s.queue, s.applied

-- All that the leader needs, of one moment.
-- name: cluster
select (select coalesce(json_agg(json_build_array(name, max_workers)), '[]') from forge.queue),
       (select coalesce(json_agg(json_build_array(id, queues, capacity)), '[]') from forge.pod where reaped_at is null),
       (select coalesce(json_agg(json_build_array(s.pod, s.queue, s.workers, s.applied, s.running)), '[]')
          from forge.share s join forge.pod p on p.id = s.pod where p.reaped_at is null)

-- The leader's word, behind hold_term. A pod that is being removed is passed over: waiting for it could make two
-- transactions wait for each other.
-- name: assign_shares
with told as (
    select * from unnest(:pods::int[], :queues::text[], :workers::int[]) t(pod, queue, workers)
), live as materialized (
    select p.id from forge.pod p where p.id = any(:pods::int[]) and p.reaped_at is null for key share skip locked
), gone as (
    delete from forge.share s using told t where s.pod = t.pod and s.queue = t.queue and t.workers is null
)
insert into forge.share as s (pod, queue, workers, term)
select t.pod, t.queue, t.workers, :term::bigint
  from told t join live on live.id = t.pod where t.workers is not null order by t.pod, t.queue
on conflict (pod, queue) do update set workers = excluded.workers, term = excluded.term

-- Queues that no live pod serves, and whether jobs wait in them. Hops from queue to queue along the claim's indexes,
-- and over those that are served: of these there may be millions of dead entries.
-- name: undeclared_queues
with recursive served(queue) as materialized (
    select distinct s.queue collate "C" from forge.pod p cross join unnest(p.queues) s(queue) where p.reaped_at is null
), hop(queue) as (
    select '' collate "C"
    union all
    select case when s.queue is null
           then (select j.queue from forge.job j where j.line is null and j.status in ('pending', 'failed')
                    and j.queue > h.queue
                  order by j.queue limit 1)
           else coalesce((select j.queue from forge.job j where j.line is null and j.status in ('pending', 'failed')
                             and j.queue > h.queue and j.queue < s.queue order by j.queue limit 1), s.queue) end
      from hop h cross join lateral (select min(served.queue) as queue from served where served.queue > h.queue) s
     where h.queue is not null
), waiting as materialized (
    select queue from hop where queue is not null
    union
    select l.queue from forge.line_queue l cross join lateral (
        select from forge.job j where j.queue = l.queue and {waits_in_line} limit 1) w
)
select n.queue, exists (select from waiting w where w.queue = n.queue)
  from (select queue from waiting where queue <> '' union select name from forge.queue) n
 where not exists (select from served s where s.queue = n.queue) order by n.queue

-- All that look_at_shares goes by, as text: if it is what it was before, so is the answer. With 3,000 queues this takes
-- 0.7 ms, and the look 13.
-- name: known_of_shares
select (select json_group_array(json_array(name, max_workers, paused)) from forge_queue),
       (select json_group_array(json_array(id, queues, capacity)) from forge_pod),
       (select json_group_array(json_array(pod, queue, workers, applied, running)) from forge_share),
       (select json_group_array(queue) from forge_line_queue)

-- Lists of queues are read once, not once for each queue.
-- name: look_at_shares
with declared(queue) as materialized (
    select e.value from forge_pod p cross join json_each(p.queues) e where p.id = :pod
), elsewhere(queue, pods) as materialized (
    select e.value, count(*) from forge_pod p cross join json_each(p.queues) e where p.id <> :pod and p.capacity > 0
     group by e.value
)
select q.name, q.max_workers, q.paused, q.name in declared, s.workers, s.applied, s.running, coalesce(o.pods, 0),
       exists (select 1 from forge_share r where r.queue = q.name and r.pod <> me.id),
       exists (select 1 from forge_line_queue l where l.queue = q.name)
  from forge_pod me cross join forge_queue q left join forge_share s on s.pod = me.id and s.queue = q.name
  left join elsewhere o on o.queue = q.name
 where me.id = :pod and (s.pod is not null or q.name in (select value from json_each(:queues)))

-- name: report_share
insert into forge_share (pod, queue, workers, applied, running)
select id, :queue, :workers, :applied, :running from forge_pod where id = :pod
on conflict (pod, queue) do update set running = excluded.running,
    applied = iif(workers is excluded.workers, excluded.applied, applied)
returning queue, applied

-- name: totals
select name, max_workers from forge_queue

-- name: members
select id, queues, capacity from forge_pod

-- name: shares
select pod, queue, workers, applied, running from forge_share

-- name: assign_share
insert into forge_share (pod, queue, workers, term) select id, :queue, :workers, :term from forge_pod where id = :pod
on conflict (pod, queue) do update set workers = excluded.workers, term = excluded.term

-- name: remove_share
delete from forge_share where pod = :pod and queue = :queue

-- name: undeclared_queues
with recursive hop(queue) as (
    select (select queue from forge_job indexed by forge_job_claim
             where line is null and status in ('pending', 'failed') order by queue limit 1)
    union all
    select (select j.queue from forge_job j indexed by forge_job_claim
             where j.line is null and j.status in ('pending', 'failed') and j.queue > hop.queue order by j.queue
             limit 1)
      from hop where hop.queue is not null
), waiting(queue) as (
    select queue from hop where queue is not null
    union
    select l.queue from forge_line_queue l where exists (
        select 1 from forge_job j indexed by forge_job_line_due
         where j.queue = l.queue and j.line is not null and j.status in ('pending', 'failed'))
)
select n.queue, exists (select 1 from waiting w where w.queue = n.queue)
  from (select queue from waiting union select name from forge_queue) n
 where not exists (select 1 from forge_pod p, json_each(p.queues) e where e.value = n.queue) order by n.queue

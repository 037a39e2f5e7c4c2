-- part: counters
completed, failed, throttled, snoozed, crashed, cancelled, dead, reaped

-- part: gauges
pending, scheduled, in_flight, retrying, dead_jobs, oldest, estimated

-- part: added
on conflict do update set
    completed = completed + excluded.completed, failed = failed + excluded.failed, throttled = throttled +
    excluded.throttled, snoozed = snoozed + excluded.snoozed, crashed = crashed + excluded.crashed, cancelled =
    cancelled + excluded.cancelled, dead = dead + excluded.dead, reaped = reaped + excluded.reaped,
    latency = (select json_group_object(key, n) from (select e.key as key, sum(e.value) as n from (
            select key, value from json_each(latency) union all select key, value from json_each(excluded.latency)) e
             group by e.key)),
    run_time = (select json_group_object(key, n) from (select e.key as key, sum(e.value) as n from (
            select key, value from json_each(run_time) union all select key, value from json_each(excluded.run_time)) e
             group by e.key))

-- name: take_report
insert into forge_metric_writer (writer, number, at) values (:writer, :number, :now)
on conflict (writer) do update set number = excluded.number, at = excluded.at where number < excluded.number
    returning number

-- name: write_part
insert into forge_metric_part (minute, pod, queue, {counters}, latency, run_time)
values (:minute, :pod, :queue, :completed, :failed, :throttled, :snoozed, :crashed, :cancelled, :dead, :reaped,
        :latency, :run_time)
{added}

-- name: write_vitals
insert into forge_metric_pod (minute, pod, host, pid, workers, connections, master_cpu, zygote_cpu, workers_cpu,
                              master_rss, zygote_rss,
                        workers_rss, master_pss, zygote_pss, workers_pss, claims, finalizes, beats)
values (:minute, :pod, :host, :pid, :workers, :connections, :master_cpu, :zygote_cpu, :workers_cpu, :master_rss,
        :zygote_rss, :workers_rss, :master_pss, :zygote_pss, :workers_pss, :claims, :finalizes, :beats)
on conflict do update set workers = max(workers, excluded.workers),
    connections = max(connections, excluded.connections), master_cpu = coalesce(master_cpu + excluded.master_cpu,
        master_cpu, excluded.master_cpu),
    zygote_cpu = coalesce(zygote_cpu + excluded.zygote_cpu, zygote_cpu, excluded.zygote_cpu),
    workers_cpu = coalesce(workers_cpu + excluded.workers_cpu, workers_cpu, excluded.workers_cpu),
    master_rss = coalesce(max(master_rss, excluded.master_rss), master_rss, excluded.master_rss),
    zygote_rss = coalesce(max(zygote_rss, excluded.zygote_rss), zygote_rss, excluded.zygote_rss),
    workers_rss = coalesce(max(workers_rss, excluded.workers_rss), workers_rss, excluded.workers_rss),
    master_pss = coalesce(max(master_pss, excluded.master_pss), master_pss, excluded.master_pss),
    zygote_pss = coalesce(max(zygote_pss, excluded.zygote_pss), zygote_pss, excluded.zygote_pss),
    workers_pss = coalesce(max(workers_pss, excluded.workers_pss), workers_pss, excluded.workers_pss),
    claims = (select json_group_object(key, n) from (select e.key as key, sum(e.value) as n from (
            select key, value from json_each(claims) union all select key, value from json_each(excluded.claims)) e
             group by e.key)),
    finalizes = (select json_group_object(key, n) from (select e.key as key, sum(e.value) as n from (
            select key, value from json_each(finalizes) union all select key, value
              from json_each(excluded.finalizes)) e group by e.key)),
    beats = (select json_group_object(key, n) from (select e.key as key, sum(e.value) as n from (
            select key, value from json_each(beats) union all select key, value from json_each(excluded.beats)) e
             group by e.key))

-- name: enqueued_live
select queue, count(*), max(id) from (
    select id, queue from forge_job where id >= :first and id < :last order by id limit :most) group by queue

-- name: enqueued_past
select queue, count(*), max(id) from (
    select id, queue from forge_job_history where id >= :first and id < :last order by id limit :most) group by queue

-- Hops from queue to queue; what waits is in the claim's index, which has no more of it than :most read of each queue.
-- name: standing_waiting
with recursive hop(queue) as (
    select (select queue from forge_job indexed by forge_job_claim
             where line is null and status in ('pending', 'failed') order by queue limit 1)
    union all
    select (select j.queue from forge_job j indexed by forge_job_claim
             where j.line is null and j.status in ('pending', 'failed') and j.queue > hop.queue order by j.queue
             limit 1)
      from hop where hop.queue is not null
), named(queue) as (
    select queue from hop where queue is not null union select queue from forge_line_queue
)
select n.queue,
       (select json_array(count(*) filter (where status = 'pending' and run_at <= :now),
                          count(*) filter (where status = 'pending' and run_at > :now),
                          count(*) filter (where status = 'failed'), count(*)) from (
            select * from (select status, run_at from forge_job indexed by forge_job_claim
                            where queue = n.queue and line is null and status in ('pending', 'failed')
                            order by priority, run_at, id limit :most)
            union all
            select * from (select status, run_at from forge_job indexed by forge_job_line_due
                            where queue = n.queue and line is not null and status in ('pending', 'failed')
                            order by run_at limit :most))) from named n

-- name: standing_running
select queue, count(*) from (select queue from forge_job indexed by forge_job_claimed where claim is not null
                              limit :most) group by queue

-- name: dead_jobs
select queue, count(*) from (
    select queue from forge_job_history indexed by forge_job_history_unhappy
     where status in ('dead', 'cancelled') and status = 'dead' limit :most)
 group by queue

-- name: database_pages
select page_count * page_size from pragma_page_count, pragma_page_size

-- name: database_version
select sqlite_version(), (select file from pragma_database_list where name = 'main')

-- The leader's writes, each behind hold_term.
-- name: record_standing
insert into forge_metric (minute, queue, {gauges})
values (:minute, :queue, :pending, :scheduled, :in_flight, :retrying, :dead_jobs, :oldest, :estimated)
on conflict do update set pending = excluded.pending, scheduled = excluded.scheduled, in_flight = excluded.in_flight,
    retrying = excluded.retrying, dead_jobs = excluded.dead_jobs, oldest = excluded.oldest,
    estimated = excluded.estimated

-- name: record_enqueued
insert into forge_metric (minute, queue, enqueued) values (:minute, :queue, :enqueued)
on conflict do update set enqueued = max(coalesce(enqueued, 0), excluded.enqueued)

-- name: record_database
insert into forge_metric_database (minute, size, job_size, history_size, job_dead, history_dead)
values (:minute, :size, :job_size, :history_size, :job_dead, :history_dead)
on conflict do update set size = excluded.size, job_size = excluded.job_size, history_size = excluded.history_size,
    job_dead = excluded.job_dead, history_dead = excluded.history_dead

-- One minute at a time, in two steps.
-- name: oldest_parts
select min(minute) from forge_metric_part having min(minute) <= :before

-- name: roll_up_metrics
insert into forge_metric (minute, queue, {counters}, latency, run_time)
select minute, queue, sum(completed), sum(failed), sum(throttled), sum(snoozed), sum(crashed), sum(cancelled),
       sum(dead), sum(reaped), coalesce((select json_group_object(s.key, s.n) from (
           select e.key, sum(e.value) as n from forge_metric_part r cross join json_each(r.latency) e
            where r.minute = :minute and r.queue = p.queue group by e.key) s), '{}'),
       coalesce((select json_group_object(s.key, s.n) from (
           select e.key, sum(e.value) as n from forge_metric_part r cross join json_each(r.run_time) e
            where r.minute = :minute and r.queue = p.queue group by e.key) s), '{}')
  from forge_metric_part p where minute = :minute group by minute, queue
{added}

-- name: remove_parts
delete from forge_metric_part where minute = :minute

-- name: prune_metric
delete from forge_metric where (minute, queue) in (select minute, queue from forge_metric where minute < :before
                                                    order by minute, queue limit :n)

-- name: prune_metric_pod
delete from forge_metric_pod where (minute, pod) in (select minute, pod from forge_metric_pod where minute < :before
                                                      order by minute, pod limit :n)

-- name: prune_metric_database
delete from forge_metric_database where minute in (select minute from forge_metric_database where minute < :before
                                                    order by minute limit :n)

-- name: prune_metric_writer
delete from forge_metric_writer where writer in (select writer from forge_metric_writer where at < :before limit :n)

-- name: read_metrics
with seen as materialized (
    select minute / :step * :step as at, minute, queue, {counters}, latency, run_time, enqueued, {gauges}
      from forge_metric
     where minute >= :since and minute < :until and (:queue is null or queue = :queue)
    union all
    select minute / :step * :step, minute, queue, {counters}, latency, run_time, null, null, null, null, null, null,
           null, null
      from forge_metric_part where minute >= :since and minute < :until and (:queue is null or queue = :queue)
), late as (select s.at, s.queue, json_group_object(s.key, s.n) as latencies from (
        select r.at, r.queue, e.key, sum(e.value) as n from seen r cross join json_each(r.latency) e
         group by r.at, r.queue, e.key) s
     group by s.at, s.queue),
ran as (select s.at, s.queue, json_group_object(s.key, s.n) as run_times from (
        select r.at, r.queue, e.key, sum(e.value) as n from seen r cross join json_each(r.run_time) e
         group by r.at, r.queue, e.key) s
     group by s.at, s.queue),
stood as (  -- the other columns are those of the row with the greatest minute
    select at, queue, max(minute), {gauges} from seen where pending is not null group by at, queue
), sums as (
    select at, queue, sum(completed) as completed, sum(failed) as failed, sum(throttled) as throttled,
           sum(snoozed) as snoozed, sum(crashed) as crashed, sum(cancelled) as cancelled, sum(dead) as dead,
           sum(reaped) as reaped, sum(enqueued) as enqueued from seen group by at, queue
)
select at, queue, {counters}, latencies, run_times, enqueued, {gauges}
  from sums left join late using (at, queue) left join ran using (at, queue) left join stood using (at, queue)
 order by at, queue

-- name: read_pod_metrics
with seen as materialized (
    select minute / :step * :step as at, * from forge_metric_pod where minute >= :since and minute < :until
),
claimed as (select s.at, s.pod, json_group_object(s.key, s.n) as claim_times from (
        select r.at, r.pod, e.key, sum(e.value) as n from seen r cross join json_each(r.claims) e
         group by r.at, r.pod, e.key) s
     group by s.at, s.pod),
ended as (select s.at, s.pod, json_group_object(s.key, s.n) as finalize_times from (
        select r.at, r.pod, e.key, sum(e.value) as n from seen r cross join json_each(r.finalizes) e
         group by r.at, r.pod, e.key) s
     group by s.at, s.pod),
beaten as (select s.at, s.pod, json_group_object(s.key, s.n) as beat_times from (
        select r.at, r.pod, e.key, sum(e.value) as n from seen r cross join json_each(r.beats) e
         group by r.at, r.pod, e.key) s
     group by s.at, s.pod),
sums as (
    select at, pod, min(host), min(pid), max(workers), max(connections), sum(master_cpu), sum(zygote_cpu),
           sum(workers_cpu), max(master_rss), max(zygote_rss), max(workers_rss), max(master_pss), max(zygote_pss),
           max(workers_pss)
      from seen group by at, pod
)
select s.*, claim_times, finalize_times, beat_times
  from sums s left join claimed using (at, pod) left join ended using (at, pod) left join beaten using (at, pod)
 order by at, pod

-- name: read_database_metrics
select minute / :step * :step as at, size, job_size, history_size, job_dead, history_dead, max(minute)
  from forge_metric_database
 where minute >= :since and minute < :until group by 1 order by 1

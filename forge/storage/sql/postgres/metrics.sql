-- part: this_minute
date_trunc('minute', now())

-- part: counters
completed, failed, throttled, snoozed, crashed, cancelled, dead, reaped

-- part: gauges
pending, scheduled, in_flight, retrying, dead_jobs, oldest, estimated

-- A pod's report: its number is taken first, and all the rest follows from that it was.
-- name: write_metrics
with fresh as (
    insert into forge.metric_writer as w (writer, number) values (:writer, :number::bigint)
    on conflict (writer) do update set number = excluded.number, at = now() where w.number < excluded.number
    returning 1
), parts as (
    insert into forge.metric_part as p (minute, pod, queue, {counters}, latency, run_time)
    select {this_minute}, :pod::int, t.* from fresh cross join jsonb_to_recordset(:parts::text::jsonb)
        t(queue text, completed bigint, failed bigint, throttled bigint, snoozed bigint, crashed bigint,
          cancelled bigint, dead bigint, reaped bigint, latency jsonb, run_time jsonb) order by t.queue
    on conflict (minute, pod, queue) do update set completed = p.completed + excluded.completed,
        failed = p.failed + excluded.failed, throttled = p.throttled + excluded.throttled,
        snoozed = p.snoozed + excluded.snoozed, crashed = p.crashed + excluded.crashed,
        cancelled = p.cancelled + excluded.cancelled, dead = p.dead + excluded.dead,
        reaped = p.reaped + excluded.reaped, latency = forge.add_counts(p.latency, excluded.latency),
        run_time = forge.add_counts(p.run_time, excluded.run_time)
), own as (
    insert into forge.metric_pod as m (minute, pod, host, pid, workers, connections, master_cpu, zygote_cpu,
                                       workers_cpu, master_rss, zygote_rss, workers_rss, master_pss, zygote_pss,
                                       workers_pss, claims, finalizes, beats)
    select {this_minute}, :pod::int, v.* from fresh cross join jsonb_to_record(:vitals::text::jsonb)
        v(host text, pid int, workers int, connections int, master_cpu float8, zygote_cpu float8, workers_cpu float8,
          master_rss bigint, zygote_rss bigint, workers_rss bigint, master_pss bigint, zygote_pss bigint,
          workers_pss bigint, claims jsonb, finalizes jsonb, beats jsonb) where v.host is not null
    on conflict (minute, pod) do update set workers = greatest(m.workers, excluded.workers),
        connections = greatest(m.connections, excluded.connections),
        master_cpu = coalesce(m.master_cpu + excluded.master_cpu, m.master_cpu, excluded.master_cpu),
        zygote_cpu = coalesce(m.zygote_cpu + excluded.zygote_cpu, m.zygote_cpu, excluded.zygote_cpu),
        workers_cpu = coalesce(m.workers_cpu + excluded.workers_cpu, m.workers_cpu, excluded.workers_cpu),
        master_rss = greatest(m.master_rss, excluded.master_rss),
        zygote_rss = greatest(m.zygote_rss, excluded.zygote_rss),
        workers_rss = greatest(m.workers_rss, excluded.workers_rss),
        master_pss = greatest(m.master_pss, excluded.master_pss),
        zygote_pss = greatest(m.zygote_pss, excluded.zygote_pss),
        workers_pss = greatest(m.workers_pss, excluded.workers_pss),
        claims = forge.add_counts(m.claims, excluded.claims),
        finalizes = forge.add_counts(m.finalizes, excluded.finalizes), beats = forge.add_counts(m.beats, excluded.beats)
)
select exists (select from fresh), extract(epoch from now())::float8

-- Jobs by the time in their ids, wherever they are now: in one statement, for they move. The last id by queue says how
-- far a count came that was cut short (there is no max of uuids before PostgreSQL 18).
-- name: enqueued_between
select false, queue, count(*), max(id::text) from (
    select id, queue from forge.job where id >= :first::uuid and id < :last::uuid order by id
     limit :most::bigint) j group by queue
union all
select true, queue, count(*), max(id::text) from (
    select id, queue from forge.job_history where id >= :first::uuid and id < :last::uuid order by id
     limit :most::bigint) h group by queue

-- Where each queue begins: of every priority the first job, in whatever state, and how long the first that waits has
-- been due. A look starts where the one before found the first jobs, as the claim starts at its marks. Of all lines
-- together there is one row, without a priority.
-- name: fronts
with recursive mark as materialized (select {mark_columns} from {marks}), hop(queue) as (
    select '' collate "C"
    union all
    select case when m.queue is null
           then (select j.queue from forge.job j where j.line is null and j.queue > h.queue order by j.queue limit 1)
           else coalesce((select j.queue from forge.job j
                           where j.line is null and j.queue > h.queue and j.queue < m.queue
                           order by j.queue limit 1), m.queue) end
      from hop h cross join lateral (select min(mark.queue collate "C") as queue from mark where mark.queue > h.queue) m
     where h.queue is not null
), level(queue, priority) as (
    select h.queue, -32769 from hop h where h.queue <> ''
    union all
    select l.queue, {next_level} from level l cross join lateral {next_mark} where l.priority is not null
)
select l.queue, l.priority, f.run_at, f.id, extract(epoch from now() - w.run_at)::float8, now()
  from level l left join mark m on m.queue = l.queue and m.priority = l.priority
  left join lateral (
    select j.run_at, j.id from forge.job j where j.queue = l.queue and j.line is null and j.priority = l.priority
       and (j.run_at, j.id) >= (coalesce(m.run_at, '-infinity'), coalesce(m.id, '00000000-0000-0000-0000-000000000000'))
     order by j.run_at, j.id limit 1) f on true
  left join lateral (
    select j.run_at from forge.job j
     where j.queue = l.queue and j.line is null and j.status in ('pending', 'failed') and j.priority = l.priority
       and (j.run_at, j.id) >= (f.run_at, f.id)
     order by j.run_at, j.id limit 1) w on true
 where l.priority > -32769
union all
select q.queue, null, null, null, extract(epoch from now() - d.run_at)::float8, now()
  from forge.line_queue q cross join lateral (
    select j.run_at from forge.job j where j.queue = q.queue and {waits_in_line}
     order by j.run_at limit 1) d

-- Each queue from there on, which are the marks here: what runs was first in line once, so it is found there, whatever
-- waits behind it.
-- name: standing
with mark as materialized (select {mark_columns} from {marks})
select n.queue, f.pending, f.scheduled, f.in_flight, f.retrying, f.seen
  from (select queue from mark union select queue from forge.line_queue) n cross join lateral (
    select count(*) filter (where j.status = 'pending' and j.run_at <= now()) as pending,
           count(*) filter (where j.status = 'pending' and j.run_at > now()) as scheduled,
           count(*) filter (where j.status = 'in_progress') as in_flight,
           count(*) filter (where j.status = 'failed') as retrying, count(*) as seen
      from ((select p.status, p.run_at from mark m cross join lateral (
                select status, run_at from forge.job
                 where queue = m.queue and line is null and priority = m.priority and (run_at, id) >= (m.run_at, m.id)
                 order by run_at, id limit :most::bigint) p
              where m.queue = n.queue limit :most::bigint)
            union all
            (select status, run_at from forge.job where queue = n.queue and line is not null and place is null
              order by run_at limit :most::bigint)
            union all
            (select status, run_at from forge.job where queue = n.queue and place is not null limit :most::bigint)) j) f
 where f.seen > 0

-- name: pages_of_jobs
select pg_relation_size('forge.job') / current_setting('block_size')::bigint

-- name: sample_standing
select queue, count(*) filter (where status = 'pending' and run_at <= now()),
       count(*) filter (where status = 'pending' and run_at > now()), count(*) filter (where status = 'failed')
  from forge.job tablesample system (:percent::float8) group by queue

-- name: dead_jobs
select queue, count(*) from (
    select queue from forge.job_history where status in ('dead', 'cancelled') and status = 'dead' limit :most::bigint) d
     group by queue

-- name: database_figures
select pg_database_size(current_database()), pg_total_relation_size('forge.job'),
       pg_total_relation_size('forge.job_history'), pg_stat_get_dead_tuples('forge.job'::regclass),
       pg_stat_get_dead_tuples('forge.job_history'::regclass)

-- What others do is seen as far as the role may see it: a query of theirs only by pg_read_all_stats.
-- name: database_health
select current_setting('server_version'), a.connections, a.active, current_setting('max_connections')::int,
       case when not pg_is_in_recovery() then (pg_current_wal_lsn() - '0/0')::bigint end,
       (select max(pg_current_wal_lsn() - restart_lsn)::bigint from pg_replication_slots where not pg_is_in_recovery())
  from (select count(*) as connections, count(*) filter (where state = 'active' and pid <> pg_backend_pid()) as active
          from pg_stat_activity where backend_type = 'client backend') a

-- Of this database, or one that holds a snapshot: prepared ones have no process, theirs is 0.
-- name: oldest_transaction
select pid, usename, application_name, client, state, extract(epoch from clock_timestamp() - since)::float8, query
  from (select pid, usename::text, application_name, coalesce(host(client_addr), 'local') as client, state,
               xact_start as since, left(query, 1000) as query from pg_stat_activity
         where datname = current_database() and xact_start is not null and pid <> pg_backend_pid()
           and backend_type = 'client backend'
        union all
        select 0, owner::text, null, null, 'prepared', prepared, 'prepare transaction ' || quote_literal(gid)
          from pg_prepared_xacts where database = current_database()) t
 where since < clock_timestamp() - interval '1 second' order by since limit 1

-- The leader's writes, each behind hold_term.
-- name: record_standing
insert into forge.metric as m (minute, queue, {gauges})
select to_timestamp(:minute::float8), t.* from jsonb_to_recordset(:rows::text::jsonb)
    t(queue text, pending bigint, scheduled bigint, in_flight bigint, retrying bigint, dead_jobs bigint, oldest float8,
      estimated boolean) order by t.queue
on conflict (minute, queue) do update set pending = excluded.pending, scheduled = excluded.scheduled,
    in_flight = excluded.in_flight, retrying = excluded.retrying, dead_jobs = excluded.dead_jobs,
    oldest = excluded.oldest, estimated = excluded.estimated

-- name: record_enqueued
insert into forge.metric as m (minute, queue, enqueued)
select to_timestamp(t.minute), t.queue, t.enqueued from jsonb_to_recordset(:rows::text::jsonb)
    t(minute float8, queue text, enqueued bigint) order by t.minute, t.queue
on conflict (minute, queue) do update set enqueued = greatest(m.enqueued, excluded.enqueued)

-- name: record_database
insert into forge.metric_database as d (minute, size, job_size, history_size, job_dead, history_dead)
values (to_timestamp(:minute::float8), :size::bigint, :job_size::bigint, :history_size::bigint, :job_dead::bigint,
        :history_dead::bigint)
on conflict (minute) do update set size = excluded.size, job_size = excluded.job_size,
    history_size = excluded.history_size, job_dead = excluded.job_dead, history_dead = excluded.history_dead

-- One minute at a time. Rows are deleted and added in one statement; who comes second waits for the first and finds
-- none.
-- name: roll_up_metrics
with gone as (
    delete from forge.metric_part
     where minute = (select min(minute) from forge.metric_part)
       and minute <= now() - make_interval(secs => 60 + :older::float8)
    returning *
), late as (
    select s.queue, jsonb_object_agg(s.key, s.n) as counts from (
        select g.queue, e.key, sum(e.value::bigint) as n from gone g cross join lateral jsonb_each_text(g.latency) e
         group by g.queue, e.key) s group by s.queue
), ran as (
    select s.queue, jsonb_object_agg(s.key, s.n) as counts from (
        select g.queue, e.key, sum(e.value::bigint) as n from gone g cross join lateral jsonb_each_text(g.run_time) e
         group by g.queue, e.key) s group by s.queue
), added as (
    insert into forge.metric as m (minute, queue, {counters}, latency, run_time)
    select g.minute, g.queue, sum(g.completed), sum(g.failed), sum(g.throttled), sum(g.snoozed), sum(g.crashed),
           sum(g.cancelled), sum(g.dead), sum(g.reaped),
           coalesce((select l.counts from late l where l.queue = g.queue), '{}'),
           coalesce((select r.counts from ran r where r.queue = g.queue), '{}')
      from gone g group by g.minute, g.queue order by g.minute, g.queue
    on conflict (minute, queue) do update set completed = m.completed + excluded.completed,
        failed = m.failed + excluded.failed, throttled = m.throttled + excluded.throttled,
        snoozed = m.snoozed + excluded.snoozed, crashed = m.crashed + excluded.crashed,
        cancelled = m.cancelled + excluded.cancelled, dead = m.dead + excluded.dead,
        reaped = m.reaped + excluded.reaped, latency = forge.add_counts(m.latency, excluded.latency),
        run_time = forge.add_counts(m.run_time, excluded.run_time)
)
select count(*) from gone

-- name: prune_metrics
with a as (
    delete from forge.metric where (minute, queue) in (
        select minute, queue from forge.metric where minute < now() - make_interval(secs => :keep::float8)
         order by minute, queue limit :n::bigint) returning 1
), b as (
    delete from forge.metric_pod where (minute, pod) in (
        select minute, pod from forge.metric_pod where minute < now() - make_interval(secs => :keep::float8)
         order by minute, pod limit :n::bigint) returning 1
), c as (
    delete from forge.metric_database where minute in (
        select minute from forge.metric_database where minute < now() - make_interval(secs => :keep::float8)
         order by minute limit :n::bigint) returning 1
), d as (
    delete from forge.metric_writer where writer in (
        select writer from forge.metric_writer where at < now() - make_interval(secs => :keep::float8)
         limit :n::bigint) returning 1
)
select (select count(*) from a) + (select count(*) from b) + (select count(*) from c) + (select count(*) from d)

-- part: in_range
minute >= to_timestamp(:since::float8) and minute < to_timestamp(:until::float8)

-- part: step_of
floor(extract(epoch from minute)::float8 / :step::float8) * :step::float8 as at

-- What has been added up and what has not: a row is in exactly one of the two at any moment.
-- name: read_metrics
with seen as materialized (
    select {step_of}, minute, queue, {counters}, latency, run_time, enqueued, {gauges} from forge.metric
     where {in_range} and (:queue::text is null or queue = :queue::text)
    union all
    select {step_of}, minute, queue, {counters}, latency, run_time, null, null, null, null, null, null, null, null
      from forge.metric_part where {in_range} and (:queue::text is null or queue = :queue::text)
), late as (
    select s.at, s.queue, jsonb_object_agg(s.key, s.n) as counts from (
        select r.at, r.queue, e.key, sum(e.value::bigint) as n from seen r
          cross join lateral jsonb_each_text(r.latency) e
         group by r.at, r.queue, e.key) s group by s.at, s.queue
), ran as (
    select s.at, s.queue, jsonb_object_agg(s.key, s.n) as counts from (
        select r.at, r.queue, e.key, sum(e.value::bigint) as n from seen r
          cross join lateral jsonb_each_text(r.run_time) e
         group by r.at, r.queue, e.key) s group by s.at, s.queue
), stood as (
    select distinct on (at, queue) at, queue, {gauges} from seen where pending is not null
     order by at, queue, minute desc
), sums as (
    select at, queue, sum(completed)::bigint as completed, sum(failed)::bigint as failed,
           sum(throttled)::bigint as throttled, sum(snoozed)::bigint as snoozed, sum(crashed)::bigint as crashed,
           sum(cancelled)::bigint as cancelled, sum(dead)::bigint as dead, sum(reaped)::bigint as reaped,
           sum(enqueued)::bigint as enqueued from seen group by at, queue
)
select at, queue, {counters}, late.counts::json, ran.counts::json, enqueued, {gauges}
  from sums left join late using (at, queue) left join ran using (at, queue) left join stood using (at, queue)
 order by at, queue

-- name: read_pod_metrics
with seen as materialized (
    select {step_of}, * from forge.metric_pod where {in_range}
), spans as (
    select s.at, s.pod, jsonb_object_agg(s.key, s.n) filter (where s.what = 0) as claims,
           jsonb_object_agg(s.key, s.n) filter (where s.what = 1) as finalizes,
           jsonb_object_agg(s.key, s.n) filter (where s.what = 2) as beats from (
        select r.at, r.pod, t.what, e.key, sum(e.value::bigint) as n
          from seen r cross join lateral (values (0, r.claims), (1, r.finalizes), (2, r.beats)) t(what, counts)
         cross join lateral jsonb_each_text(t.counts) e group by r.at, r.pod, t.what, e.key) s group by s.at, s.pod
), sums as (
    select at, pod, min(host) as host, min(pid) as pid, max(workers) as workers, max(connections) as connections,
           sum(master_cpu) as master_cpu, sum(zygote_cpu) as zygote_cpu, sum(workers_cpu) as workers_cpu,
           max(master_rss) as master_rss, max(zygote_rss) as zygote_rss, max(workers_rss) as workers_rss,
           max(master_pss) as master_pss, max(zygote_pss) as zygote_pss, max(workers_pss) as workers_pss
      from seen group by at, pod
)
select s.*, p.claims::json, p.finalizes::json, p.beats::json from sums s left join spans p using (at, pod)
 order by at, pod

-- name: read_database_metrics
select distinct on (s.at) s.at, s.size, s.job_size, s.history_size, s.job_dead, s.history_dead
  from (select {step_of}, * from forge.metric_database where {in_range}) s order by s.at, s.minute desc

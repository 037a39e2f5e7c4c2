-- Marks as a table. Times come as they are stored, in microseconds.
-- part: marks
unnest(:mark_queues::text[], :mark_priorities::bigint[], :mark_run_ats::bigint[], :mark_ids::uuid[])
    m(queue, priority, at, id)

-- part: mark_columns
m.queue, m.priority::int as priority, timestamptz '2000-01-01 00:00+00' + m.at * interval '1 microsecond' as run_at,
m.id

-- The next priority after l.priority that has a job or a mark: n is the next one that has a mark. Between two of those
-- there are no entries but of jobs that others have claimed; so the dead ones of those that have marks are not read
-- here.
-- part: next_level
coalesce((select j.priority::int from forge.job j
           where j.queue = l.queue and j.line is null and j.priority > l.priority and j.priority < n.priority
           order by j.priority limit 1), nullif(n.priority, 32768))

-- part: next_mark
(select coalesce(min(m.priority), 32768) as priority from mark m where m.queue = l.queue and m.priority > l.priority) n

-- Bytes that a payload has when it is read. Of one that is stored as it is that is known without reading it.
-- part: payload_size
case when pg_column_compression(j.payload) is null then pg_column_size(j.payload) else octet_length(j.payload::text) end

-- Claim up to :n plain jobs of a queue in the order (priority, run_at, id), in each priority from behind its mark.
--
-- The recursion hops from one priority to the next: within a priority the due jobs are one range, so a million
-- jobs scheduled for next year in front of the due ones of a later priority are never read. The marks bound each
-- priority from below: entries of jobs already claimed stay in the index until no snapshot needs them, and
-- reading past 200,000 of them took 42 ms.
-- Losing a claim in a crash of the database only makes the job pending again: the claim turns off, for its own
-- transaction, the wait for the disk.
-- The lock on the pod's row is the fence: who takes a pod for dead locks that row too, and so either waits for this
-- claim and then finds it, or comes first and is seen here.
-- Row addresses are gathered into one array: the limit holds whatever plan joins it (a plain IN can over-claim),
-- and each is safe because its row is locked in this same statement.
-- The last job is the one with which their payloads come to :most_bytes. To add them up costs 0.1 µs a job; where it
-- ends is found out only if they are too many. Those behind it were locked for nothing, which who sees large payloads
-- coming avoids by a small :n. (With a window over all of them it was 0.4 µs a job.)
-- name: claim
with recursive mark as materialized (select {mark_columns} from {marks}), level(queue, priority) as (
    select :queue::text, -32769
    union all
    select l.queue, {next_level} from level l cross join lateral {next_mark} where l.priority is not null
)
update forge.job set status = 'in_progress', attempts = attempts + 1, claim = :claim::bigint, claimed_at = now()
 where ctid = any((
    select case when sum(due.size) < :most_bytes::bigint then array_agg(due.ctid) else (
               select array_agg(u.ctid) from (
                   select u.ctid, sum(j.size) over (order by u.i rows unbounded preceding) - j.size as before
                     from unnest(array_agg(due.ctid)) with ordinality u(ctid, i) cross join lateral (
                       select {payload_size} as size from forge.job j where j.ctid = u.ctid) j) u
                where u.before < :most_bytes::bigint) end
      from (
        select due.ctid, due.size from level l left join mark m on m.priority = l.priority cross join lateral (
            select j.ctid, {payload_size} as size from forge.job j
             where j.queue = :queue and j.line is null and j.status in ('pending', 'failed') and j.priority = l.priority
               and j.run_at <= now()
               and (j.run_at, j.id) > (coalesce(m.run_at, '-infinity'),
                                       coalesce(m.id, '00000000-0000-0000-0000-000000000000'))
             order by j.run_at, j.id limit :n::bigint
             for update skip locked) due
         where (select not q.paused and coalesce(q.throttled_until <= now(), true) from forge.queue q
                 where q.name = :queue)
               is not false
           and exists (select from forge.pod where id = :claim::bigint >> 32 and reaped_at is null for key share)
           and (not :unsynced::boolean or (select set_config('synchronous_commit', 'off', true)) = 'off')
         limit :n::bigint) due)::tid[])
returning priority, run_at, id, kind, payload, attempts, max_attempts, timeout, keep_result, dedupe_key

-- Reads the whole table, in pieces of so many pages: however large it is, each of them is answered soon, or the
-- connection is dead. They are read in one snapshot, or a row that moves to another page meanwhile might be in none.
-- name: job_pages
select pg_relation_size('forge.job') / current_setting('block_size')::int

-- part: in_piece
ctid >= :first::text::tid and ctid < :end::text::tid

-- What claims whose answer was lost had in fact claimed: for after an outage.
-- name: claimed
select id, claim, dedupe_key is not null, queue from forge.job
 where {in_piece} and status = 'in_progress' and claim = any(:claims::bigint[])

-- An offer, unless the table has grown: then somebody's old transaction keeps dead rows in it, and who stores jobs
-- would read them all.
-- name: offer
insert into forge.offer (queue, claim, channel, beat_within)
select :queue, :claim::bigint, :channel, :beat_within::real
 where pg_relation_size('forge.offer') <= :most_bytes::bigint
returning claim

-- Those that still stand; the others had been taken. Waits for who is taking one.
-- name: withdraw
delete from forge.offer where claim = any(:claims::bigint[]) returning claim

-- Seconds until something may be claimed from these queues. Hops over priorities as the claim does, from the same
-- marks: the first entry of each is its earliest; of all lines together it is the first of an index of their own. A
-- queue that cools down is not before that ends; a paused one is left out.
-- name: next_due
with recursive mark as materialized (select {mark_columns} from {marks}), level(queue, priority) as (
    select w.queue, -32769 from unnest(:queues::text[]) w(queue)
    union all
    select l.queue, {next_level} from level l cross join lateral {next_mark} where l.priority is not null
), due(queue, run_at) as (
    select l.queue, d.run_at
      from level l left join mark m on m.queue = l.queue and m.priority = l.priority cross join lateral (
        select j.run_at from forge.job j
         where j.queue = l.queue and j.line is null and j.status in ('pending', 'failed') and j.priority = l.priority
           and (j.run_at, j.id) > (coalesce(m.run_at, '-infinity'),
                                   coalesce(m.id, '00000000-0000-0000-0000-000000000000'))
         order by j.run_at, j.id limit 1) d
    union all
    select w.queue, d.run_at from unnest(:queues::text[]) w(queue) cross join lateral (
        select j.run_at from forge.job j where j.queue = w.queue and {waits_in_line}
         order by j.run_at limit 1) d
)
select extract(epoch from min(greatest(due.run_at, q.throttled_until)) - now())::float8
  from due left join forge.queue q on q.name = due.queue
 where q.paused is not true

-- In each priority of a queue the time before which no job waits, whether or not it could be claimed now; at most a
-- little before now, for what is still to be committed.
-- name: waiting
with recursive mark as materialized (select {mark_columns} from {marks}), level(queue, priority) as (
    select :queue::text, -32769
    union all
    select l.queue, {next_level} from level l cross join lateral {next_mark} where l.priority is not null
)
select l.priority, least(w.run_at, now() - make_interval(secs => :margin::float8))
  from level l left join mark m on m.priority = l.priority left join lateral (
    select j.run_at from forge.job j
     where j.queue = :queue and j.line is null and j.status in ('pending', 'failed') and j.priority = l.priority
       and (j.run_at, j.id) > (coalesce(m.run_at, '-infinity'), coalesce(m.id, '00000000-0000-0000-0000-000000000000'))
     order by j.run_at, j.id limit 1) w on true
 where l.priority > -32769

-- name: line_queues
select queue from forge.line_queue

-- Pods take turns at the lines of a queue: the next statement sees what the one before has claimed.
-- name: lock_lines
select pg_advisory_xact_lock(hashtextextended('forge.lines ' || :queue::text, 0))

-- A job of a line that waits. The first two conditions are those of the indexes; what runs, and holds no place of its
-- key, is read past: its claim then touches no index, as that of a plain job (13 µs a claimed job became 9.5).
-- part: waits_in_line
j.line is not null and j.place is null and j.status in ('pending', 'failed')

-- A step of the walk in claim_lines: the first waiting job of the next line, or of the next priority in the same line.
-- part: line_head
select j.line, j.priority, j.run_at, j.rate_limit, j.concurrency_key, j.concurrency from forge.job j
                where j.queue = :queue and {waits_in_line}

-- Claim up to :n jobs of lines, behind lock_lines in the same transaction.
--
-- The gate. Nothing is done while the queue is paused or cools down, for a pod that was taken for dead, or if no job of
-- any line is due.
--
-- The ring. All jobs of a line share their budget and their concurrency key, so a line is open or closed as a whole.
-- The ring walks along the index from line to line, starting behind the line where the last claim ended, to :last_line,
-- which is once around at most, and :most steps at most (a step is one priority of one line: the due jobs of each are
-- one range). A line's name begins with its budget and its key: where one of these is closed, the walk goes on behind
-- all lines that share it. `offset 0` has each of these found once a step, and not once for each time that it is named.
--
-- Part, found, ranked, granted. Open lines with due jobs get even shares of :n, in rounds: the first job of each line,
-- the second of each and so on. Those of one key get its free places in that order, and those of one budget its tokens,
-- so that neither is given twice. Jobs that have neither are not put in order for it, which is as dear as to find them.
--
-- Chains. A place is for up to :behind jobs, whoever claims them running one after the other. The last one has it in
-- its row, and the others are to end before: as long as one of them may run it is taken.
--
-- Claimed. A place is on disk before anybody hears of it: a crash of the database that took it back would give it to
-- somebody else while its job runs. A claim that took none need not wait for the disk, as in `claim`.
--
-- Last. The next claim starts before the first line that was open and got nothing, for which there was no room; else
-- behind the last open one.
--
-- The answer has one row at least: where the next claim starts, whether the walk came around, which budgets were empty,
-- whether any line was closed or may be now, how many had due jobs, whether any had a whole share of them; and then the
-- claim, its budget, its key and its place, or nulls.
-- name: claim_lines
with recursive gate as materialized (
    select from (select) one
     where (select not q.paused and coalesce(q.throttled_until <= now(), true) from forge.queue q where q.name = :queue)
           is not false
       and exists (select from forge.pod where id = :claim::bigint >> 32 and reaped_at is null for key share)
       and (select j.run_at from forge.job j where j.queue = :queue and {waits_in_line}
             order by j.run_at limit 1) <= now()
), ring(i, line, priority, wrapped, next_line, next_priority, scope, tokens, key, most, free, open, due) as (
    select 0, :after_line::text collate "C", :after_priority::smallint,
           (:after_line::text collate "C", :after_priority::smallint) < (:last_line::text, :last_priority::smallint),
           :after_line::text collate "C", :after_priority::smallint, null::text collate "C", 0, null::text collate "C",
           null::smallint, null::int[], false, false
      from gate
    union all
    select r.i + 1, h.line, h.priority, r.wrapped or h.over,
           case when o.open then h.line
                when t.tokens = 0 then split_part(h.line, '|', 1) || '}'
                else split_part(h.line, '|', 1) || '|' || split_part(h.line, '|', 2) || '}' end,
           case when o.open then h.priority else 32767::smallint end,
           h.rate_limit, t.tokens, h.concurrency_key, h.concurrency, k.free, o.open, o.open and h.run_at <= now()
      from ring r
     cross join lateral (
        select n.*, false as over from ({line_head}
                  and not r.wrapped and (j.line, j.priority) > (r.next_line, r.next_priority)
                order by j.line, j.priority, j.run_at, j.id limit 1) n
        union all
        select n.*, false from ({line_head}
                  and r.wrapped and (j.line, j.priority) > (r.next_line, r.next_priority)
                  and (j.line, j.priority) <= (:last_line::text, :last_priority::smallint)
                order by j.line, j.priority, j.run_at, j.id limit 1) n
        union all
        select n.*, true from ({line_head}
                  and not r.wrapped and (j.line, j.priority) <= (:last_line::text, :last_priority::smallint)
                order by j.line, j.priority, j.run_at, j.id limit 1) n
        limit 1) h
     cross join lateral (
        select case when h.rate_limit is null or :unbounded::boolean then :n::int
                    else coalesce((select b.tokens from unnest(:scopes::text[], :allowed::int[]) b(scope, tokens)
                                    where b.scope = h.rate_limit limit 1), 0) end as tokens offset 0) t
     cross join lateral (
        select case when h.concurrency_key is null then null
                    when h.concurrency_key = r.key and h.concurrency = r.most then r.free
                    else (select array(select s from generate_series(1, h.concurrency::int) s where s <> all(g.places)
                                        limit greatest(h.concurrency - cardinality(g.places), 0))
                            from (select array(select s.place::int from forge.job s
                                                where s.concurrency_key = h.concurrency_key
                                                  and s.place > 0) as places offset 0) g)
                    end as free offset 0) k
     cross join lateral (select t.tokens > 0 and coalesce(cardinality(k.free) > 0, true) as open offset 0) o
     where r.i < :most::int
), part as materialized (
    select r.*, s.share from ring r
     cross join (select ceil(:n::float8 / greatest(count(distinct line), 1))::int as share from ring where due) s
     where r.due
), found as materialized (
    select p.i, p.line, p.scope, p.tokens, p.key, p.free, p.share, d.address, d.size, d.priority,
           row_number() over (partition by p.line order by d.priority, d.run_at, d.id) as round
      from part p cross join lateral (
        select j.ctid as address, {payload_size} as size, j.priority, j.run_at, j.id from forge.job j
         where j.queue = :queue and {waits_in_line} and j.line = p.line
           and j.priority = p.priority and j.run_at <= now()
         order by j.run_at, j.id limit least(p.share, p.tokens, cardinality(p.free) * :behind::int)
         for update skip locked) d
), ranked as (
    select f.*, null::bigint as of_key, null::bigint as of_scope from found f
     where f.round <= f.share and f.key is null and f.scope is null
    union all
    select f.*, row_number() over (partition by f.key order by f.round, f.priority, f.i),
           row_number() over (partition by f.scope order by f.round, f.priority, f.i)
      from found f where f.round <= f.share and (f.key is not null or f.scope is not null)
), granted as materialized (
    select * from (
        select r.address, r.i, r.line, r.scope, r.round, r.priority, r.key, r.of_key,
               r.free[(r.of_key - 1) % cardinality(r.free) + 1] as seat,
               sum(r.size) over (order by r.round, r.priority, r.i rows unbounded preceding) - r.size as before
          from ranked r where (r.key is null or r.of_key <= cardinality(r.free) * :behind::int)
                          and (r.scope is null or r.of_scope <= r.tokens)
         order by r.round, r.priority, r.i limit :n::bigint) g
     where g.before < :most_bytes::bigint
), chosen as materialized (
    select g.*, null::int as place from granted g where g.seat is null
    union all
    select g.*, case when row_number() over (partition by g.key, g.seat order by g.of_key desc) = 1 then g.seat end
      from granted g where g.seat is not null
), claimed as (
    update forge.job j set status = 'in_progress', attempts = j.attempts + 1, claim = :claim::bigint,
                           claimed_at = now(), place = c.place
      from chosen c where j.ctid = c.address
    returning j.priority, j.run_at, j.id, j.kind, j.payload, j.attempts, j.max_attempts, j.timeout, j.keep_result,
              j.dedupe_key, c.scope, c.round, c.i, case when :behind::int > 1 then c.key end as key, c.seat
), last as (
    select coalesce((select min(f.i) - 1 from found f where f.line not in (select line from chosen)),
                    case when max(r.i) < :most::int then max(r.i) filter (where r.open or r.i = 0)
                         else max(r.i) end) as i,
           coalesce(max(r.i) < :most::int, true) as around,
           array_agg(distinct r.scope) filter (where r.scope is not null and r.tokens = 0) as empty,
           coalesce(bool_or(r.i > 0 and (not r.open or r.due and (r.key is not null or r.scope is not null))),
                    false) as closed
      from ring r
)
select r.line, r.priority, l.around, l.empty, l.closed, (select count(distinct line) from found)::int,
       (select coalesce(bool_or(f.round >= f.share), false) from found f), c.priority, c.run_at, c.id, c.kind,
       c.payload, c.attempts, c.max_attempts, c.timeout, c.keep_result, c.dedupe_key, c.scope, c.key, c.seat
  from last l left join ring r on r.i = l.i left join claimed c on true
 where (select set_config('synchronous_commit', case when not exists (select from chosen where place > 0) then 'off'
                                                     when s.now = 'off' then 'on' else s.now end, true)
          from current_setting('synchronous_commit') s(now)) is not null
 order by c.round, c.priority, c.i

-- A place from one job of a chain to another.
-- name: let_go_of_place
with held as materialized (
    select id, place from forge.job where id = :id::uuid and claim = :claim::bigint and place > 0 for update
)
update forge.job j set place = null from held where j.id = held.id returning held.place

-- name: take_place
update forge.job set place = :place::smallint where id = :id::uuid and claim = :claim::bigint and place is null
returning place

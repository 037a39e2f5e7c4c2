-- name: line_queues
select queue from forge_line_queue

-- Whether any job of a line may be claimed now; see PostgreSQL's claim_lines, whose steps these are.
-- name: lines_open
select 1 where exists (select 1 from forge_pod where id = :pod)
   and not exists (select 1 from forge_queue where name = :queue and (paused or throttled_until > :now))
   and exists (select 1 from forge_job indexed by forge_job_line_due where queue = :queue and line is not null
                  and status in ('pending', 'failed') and run_at <= :now)

-- The first waiting job of the next priority in the same line, or of the next line. Not as one comparison of both
-- columns, for which SQLite would read the rest of the line.
-- name: next_head
select * from (
    select line, priority, run_at, rate_limit, concurrency_key, concurrency from forge_job indexed by forge_job_line
     where queue = :queue and line is not null and status in ('pending', 'failed') and line = :line
       and priority > :priority
     order by priority, run_at, id limit 1)
union all
select * from (
    select line, priority, run_at, rate_limit, concurrency_key, concurrency from forge_job indexed by forge_job_line
     where queue = :queue and line is not null and status in ('pending', 'failed') and line > :line
     order by line, priority, run_at, id limit 1)
limit 1

-- name: places_taken
select place from forge_job indexed by forge_job_place where concurrency_key = :key and place > 0

-- name: due_in_line
select rowid from forge_job indexed by forge_job_line
 where queue = :queue and line = :line and line is not null and status in ('pending', 'failed') and priority = :priority
   and run_at <= :now order by run_at, id limit :n

-- name: claim_in_line
update forge_job set status = 'in_progress', attempts = attempts + 1, claim = :token, claimed_at = :now
 where rowid = :row returning {claim_columns}

-- name: give_place
update forge_job set place = :place where rowid = :row

-- A place from one job of a chain to another.
-- name: place_of
select place from forge_job where id = :id and claim = :token

-- name: change_place
update forge_job set place = :place where id = :id and claim = :token

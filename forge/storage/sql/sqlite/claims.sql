-- Plain columns: SQLite 3.40, which Python may bring, answers 1 to every `x is not null` in a RETURNING clause.
-- part: claim_columns
priority, run_at, id, kind, payload, attempts, max_attempts, timeout, keep_result, dedupe_key

-- The claim hops from one priority to the next: within a priority the due jobs are one range, so a million jobs
-- scheduled for next year in front of the due ones of a later priority are never read.
-- name: next_priority
select priority from forge_job indexed by forge_job_claim
 where queue = :queue and line is null and status in ('pending', 'failed') and priority > :priority order by priority
 limit 1

-- The same for a claim: none for a pod that is no more, or of a queue that is paused or cools down.
-- part: level
select priority from forge_job indexed by forge_job_claim
 where queue = :queue and line is null and status in ('pending', 'failed') and priority > :priority
   and exists (select 1 from forge_pod where id = :pod)
   and not exists (select 1 from forge_queue where name = :queue and (paused or throttled_until > :now))
 order by priority limit 1

-- name: next_claimable
{level}

-- part: claimable
from forge_job indexed by forge_job_claim
     where queue = :queue and line is null and status in ('pending', 'failed') and priority = ({level})
       and run_at <= :now
     order by run_at, id limit :n

-- Claim up to :n due plain jobs of the next priority after :priority that has any. There is no low-water mark here:
-- SQLite takes a claimed job out of the index at once, so a scan from the start never meets a dead entry. Rows are
-- found again by rowid: by id it took 1 µs a job more.
-- name: claim
update forge_job set status = 'in_progress', attempts = attempts + 1, claim = :token, claimed_at = :now
 where rowid in (
    select rowid {claimable})
returning {claim_columns}

-- Bytes that the payloads of these jobs have: of all together, and of each. SQLite 3.43 knows them without reading the
-- payloads (0.1 µs a job); before that it does not.
-- name: weigh
select sum(bytes) from (select octet_length(payload) as bytes {claimable})

-- name: weigh_by_reading
select sum(bytes) from (select length(cast(payload as blob)) as bytes {claimable})

-- name: weigh_each
select length(cast(payload as blob)) {claimable}

-- The earliest job of one priority; see next_priority.
-- name: first_due
select run_at from forge_job indexed by forge_job_claim
 where queue = :queue and line is null and status in ('pending', 'failed') and priority = :priority order by run_at, id
 limit 1

-- The earliest job of all lines.
-- name: first_lined_due
select run_at from forge_job indexed by forge_job_line_due
 where queue = :queue and line is not null and status in ('pending', 'failed') order by run_at limit 1

-- name: standing
select paused, throttled_until from forge_queue where name = :queue

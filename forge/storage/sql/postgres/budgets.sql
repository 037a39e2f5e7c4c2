-- The first step of every change. It is a statement of its own because the next one then sees what whoever had the lock
-- before has written: leases are other rows, and of those a statement that has waited would see what they were before.
-- name: lock_budget
select capacity, refill_per_sec, declared_capacity, declared_refill from forge.budget where scope = :scope for update

-- A lease made in the future: the clock was set back. Its time begins again, or it would last as long as that.
-- name: mend_leases
update forge.budget_lease set until = clock_timestamp() + (until - leased_at), leased_at = clock_timestamp()
 where scope = :scope and leased_at > clock_timestamp()

-- `forge.storage.shared.buckets.refilled` in SQL: a bucket with its leases, and its tokens now.
-- part: filled
select b.*, s.live, s.sharers,
       greatest(0, least(b.capacity - s.live, b.refill_per_sec * extract(epoch from b.now - t.between)::float8
           + greatest(0, least(b.capacity - s.live - s.lapsed,
                               b.tokens + b.refill_per_sec
                                   * greatest(0, extract(epoch from t.between - b.at)::float8))))) as there
  from (select g.*, clock_timestamp() as now from forge.budget g) b
 cross join lateral (
    select coalesce(sum(l.tokens) filter (where l.until > b.now), 0)::float8 as live,
           coalesce(sum(l.tokens) filter (where l.until <= b.now), 0)::float8 as lapsed,
           max(l.until) filter (where l.until <= b.now) as lapsed_at,
           count(*) filter (where l.until > b.now) as sharers
      from forge.budget_lease l where l.scope = b.scope) s
 cross join lateral (select least(greatest(s.lapsed_at, b.at), b.now) as between) t

-- Settle, and lease more: behind the lock. What the pod says fits what it was leased, or its lease counts as spent.
-- name: lease_tokens
with bucket as materialized (
    select f.* from ({filled}) f where f.scope = :scope
), told as materialized (
    select b.*, coalesce(l.number < :number::bigint, true) as fresh, coalesce(fits.so, false) as fits,
           case when fits.so then l.tokens - (:spent::bigint - l.spent) - :held::bigint else 0 end as back,
           case when fits.so then :held::bigint else 0 end as kept,
           b.live - case when l.until > b.now then l.tokens else 0 end as others,
           b.sharers + case when l.until > b.now then 0 else 1 end as pods
      from bucket b
      left join forge.budget_lease l on l.scope = :scope and l.pod = :pod::int
      left join lateral (select l.until > b.now and l.drains = b.drains and :spent::bigint >= l.spent
                                and :held::bigint + :spent::bigint - l.spent <= l.tokens as so) fits on true
), settled as materialized (
    select t.*, greatest(0, least(t.capacity - t.others - t.kept, t.there + t.back)) as settled from told t
), given as materialized (
    select s.*, case when floor(s.settled + 1e-9) < :least::bigint then 0 else
           greatest(0, least(:want::bigint, floor(s.settled + 1e-9)::bigint,
                             greatest(:least::bigint, s.capacity / (2 * s.pods) - s.kept))) end as granted
      from settled s where s.fresh
), poured as (
    update forge.budget b set tokens = greatest(0, g.settled - g.granted), at = g.now from given g
     where b.scope = :scope
), ended as (
    delete from forge.budget_lease l using given g
     where l.scope = :scope and (case when l.pod = :pod::int then g.kept + g.granted + :want::bigint = 0
                                 else l.until <= g.now end)
), leased as (
    insert into forge.budget_lease (scope, pod, tokens, spent, number, drains, leased_at, until)
    select :scope, :pod::int, g.kept + g.granted, :spent::bigint, :number::bigint, g.drains, g.now,
           g.now + make_interval(secs => :ttl::float8)
      from given g where g.kept + g.granted + :want::bigint > 0
    on conflict (scope, pod) do update set tokens = excluded.tokens, spent = excluded.spent, number = excluded.number,
        drains = excluded.drains, leased_at = excluded.leased_at, until = excluded.until
)
select capacity, refill_per_sec, kept, granted, greatest(0, settled - granted), pods from given

-- Bring a bucket up to now, by its limit so far: before that changes.
-- name: refill_budget
update forge.budget b set tokens = f.there, at = f.now from ({filled}) f where f.scope = b.scope and b.scope = :scope

-- name: set_budget
insert into forge.budget as b (scope, capacity, refill_per_sec, tokens)
values (:scope, :capacity::bigint, :refill::float8, :capacity::bigint)
on conflict (scope) do update set capacity = excluded.capacity, refill_per_sec = excluded.refill_per_sec,
    tokens = least(b.tokens, excluded.capacity)

-- name: declare_budget
insert into forge.budget as b (scope, capacity, refill_per_sec, tokens, declared_capacity, declared_refill)
values (:scope, :capacity::bigint, :refill::float8, :capacity::bigint, :capacity::bigint, :refill::float8)
on conflict (scope) do update set capacity = excluded.capacity, refill_per_sec = excluded.refill_per_sec,
    tokens = least(b.tokens, excluded.capacity), declared_capacity = excluded.capacity,
    declared_refill = excluded.refill_per_sec
 where (b.declared_capacity, b.declared_refill) is distinct from (excluded.capacity, excluded.refill_per_sec)

-- name: declare_default
insert into forge.budget (scope, capacity, refill_per_sec, tokens)
values (:scope, :capacity::bigint, :refill::float8, :capacity::bigint) on conflict do nothing

-- Leases are left as they are: their pods may spend them until they hear of it, so they take room until then.
-- name: drain_budget
update forge.budget set tokens = 0, at = clock_timestamp(), drains = drains + 1 where scope = :scope
returning pg_notify('forge.drain', scope)::text

-- name: budgets
select f.scope, f.capacity, f.refill_per_sec, f.there,
       (select coalesce(json_agg(json_build_array(l.pod, l.tokens) order by l.pod), '[]')
          from forge.budget_lease l where l.scope = f.scope and l.until > f.now)
  from ({filled}) f order by f.scope

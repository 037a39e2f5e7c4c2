-- A lease made in the future: the clock was set back. Its time begins again, or it would last as long as that.
-- name: mend_leases
update forge_budget_lease set until = :now + (until - leased_at), leased_at = :now
 where scope = :scope and leased_at > :now

-- name: budget
select capacity, refill_per_sec, tokens, at, drains, declared_capacity, declared_refill from forge_budget
 where scope = :scope

-- name: budget_leases
select pod, tokens, until, spent, number, drains from forge_budget_lease where scope = :scope order by pod

-- name: budget_scopes
select scope from forge_budget order by scope

-- name: pour_budget
update forge_budget set tokens = :tokens, at = :now where scope = :scope

-- name: end_leases
delete from forge_budget_lease where scope = :scope and until <= :now and pod <> :pod

-- name: end_lease
delete from forge_budget_lease where scope = :scope and pod = :pod

-- name: put_lease
insert into forge_budget_lease (scope, pod, tokens, spent, number, drains, leased_at, until)
values (:scope, :pod, :tokens, :spent, :number, :drains, :now, :until)
on conflict (scope, pod) do update set tokens = excluded.tokens, spent = excluded.spent, number = excluded.number,
    drains = excluded.drains, leased_at = excluded.leased_at, until = excluded.until

-- name: put_budget
insert into forge_budget (scope, capacity, refill_per_sec, tokens, at)
values (:scope, :capacity, :refill, :capacity, :now)
on conflict (scope) do update set capacity = excluded.capacity, refill_per_sec = excluded.refill_per_sec,
    tokens = min(tokens, excluded.capacity)

-- name: note_declared
update forge_budget set declared_capacity = :capacity, declared_refill = :refill where scope = :scope

-- name: drain_budget
update forge_budget set tokens = 0, at = :now, drains = drains + 1 where scope = :scope

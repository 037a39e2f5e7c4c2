-- name: schema_version
select max(number) from forge.migration

-- name: oldest_release
select max(coalesce(oldest, number)) from forge.migration

-- name: schema_exists
select to_regclass('forge.migration') is not null

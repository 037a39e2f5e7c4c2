-- name: schema_exists
select count(*) from sqlite_master where type = 'table' and name = 'forge_migration'

-- Whether forge made this file when its tables were named job, queue and so on.
-- name: unprefixed_tables
select count(*) from sqlite_master where type = 'table' and name = 'job_history' and sql like '%keep_result%'

-- name: schema_version
select coalesce(max(number), 0) from forge_migration

-- name: oldest_release
select max(coalesce(oldest, number)) from forge_migration

-- name: record_migration
insert into forge_migration (number, title, oldest, applied_at) values (:number, :title, :oldest, :now)

-- Every statement forge sends to PostgreSQL is in this folder. Parameters are :names;
-- forge/storage/shared/statements.py reads them.
--
-- The hot ones (claim, finalize_*) find rows by index and nothing else, whatever the statistics say: their connections
-- have run `plan_by_index`, or their transaction has where a pooler stands in between. A plan made while the table was
-- empty and then cached (a sequential scan) cost 99 µs a job instead of 15 at 100,000 jobs.

-- name: plan_by_index
select count(set_config(name, value, :local::boolean))
  from (values ('enable_seqscan', 'off'), ('enable_bitmapscan', 'off'), ('enable_sort', 'off'),
               ('enable_incremental_sort', 'off'), ('enable_hashjoin', 'off'), ('enable_mergejoin', 'off'),
               ('jit', 'off'), ('plan_cache_mode', 'force_generic_plan')) s(name, value)

-- The same connections for once without.
-- name: plan_by_scan
select set_config('enable_seqscan', 'on', true)

-- name: clock
select extract(epoch from now())::float8

-- For what people ask for, which may have to read all there is: the limit is that of its transaction alone.
-- name: take_your_time
select set_config('statement_timeout', '15min', true)

-- A COPY lasts as long as its producer makes jobs.
-- name: no_hurry
select set_config('statement_timeout', '0', true)

-- Which database a connection is on, whatever address and pooler it goes by: a server has been started at a time that
-- no other has, to the microsecond.
-- name: where_am_i
select (select oid::bigint from pg_catalog.pg_database where datname = current_database()),
       (extract(epoch from pg_postmaster_start_time()) * 1000000)::bigint,
       current_database()::text, host(inet_server_addr()), inet_server_port()

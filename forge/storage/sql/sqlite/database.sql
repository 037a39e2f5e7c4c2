-- Every statement forge sends to SQLite is in this folder: those of PostgreSQL, in small steps. There is one writer at
-- a time, inside BEGIN IMMEDIATE, so what a step has read still holds in the next; and a step costs microseconds, not a
-- round trip. :now is microseconds since 1970, read once per transaction.
--
-- A batch of claims comes as two parameters: :tokens, a JSON array, and :ids, the 16-byte ids one after the other. At
-- batch 1000 ending a claim takes 5.5 µs that way, and 9 with a prepared statement run once per row.
-- `indexed by` and `cross join` fix the plan of the hot statements whatever the statistics say; a unary plus keeps a
-- column's index out of it.

-- Not by the function pragma_database_list: that begins a transaction that reads.
-- name: where_am_i
pragma database_list

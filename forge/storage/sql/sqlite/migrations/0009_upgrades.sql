-- oldest: 9
-- Releases before this one refuse a schema that is newer than they are.

-- The last migration of the oldest release that runs on this one; null: its own.
alter table forge_migration add column oldest integer;

-- Since when a schedule is paused; and when it was, as a list of [from, to], as long as times that came before
-- have not fired.
alter table forge_schedule add column paused_at integer;
alter table forge_schedule add column pauses text not null default '[]' check (json_valid(pauses));

-- oldest: 9
-- Releases before this one refuse a schema that is newer than they are.

-- The last migration of the oldest release that runs on this one; null: its own.
alter table forge.migration add column oldest integer;

-- Since when a schedule is paused; and when it was, as a list of [from, to], as long as times that came before
-- have not fired.
alter table forge.schedule add column paused_at timestamptz;
alter table forge.schedule add column pauses json not null default '[]';

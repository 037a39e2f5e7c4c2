-- Stands in for schedules.
drop table if exists nothing_yet;

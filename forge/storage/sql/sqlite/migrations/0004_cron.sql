-- Stands in for schedules.
select 1;

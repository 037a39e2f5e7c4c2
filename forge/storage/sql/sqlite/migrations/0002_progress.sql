-- How far a running job says it is. Null until it does, and gone with the claim: history has no such column.
alter table forge_job add column progress text;

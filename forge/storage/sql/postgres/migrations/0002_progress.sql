-- How far a running job says it is. Null until it does, and gone with the claim: history has no such column. In no
-- index, so that setting it stays an update within the page.
alter table forge.job add column progress json;

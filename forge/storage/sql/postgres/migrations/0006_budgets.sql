-- Its place is taken by the budgets' own.
select 1;

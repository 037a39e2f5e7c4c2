"""What the pods do for each other: services that run beside the jobs, one leader's or every pod's."""

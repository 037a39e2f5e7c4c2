"""What many pods on one database do together: each service here runs on the leader or on every pod."""

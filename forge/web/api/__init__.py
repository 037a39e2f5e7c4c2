"""The table of endpoints: a module for each subject, each with its `ENDPOINTS`."""

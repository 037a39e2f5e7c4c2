"""What PostgreSQL and SQLite have in common below the contract: algorithms, and how SQL is read from its files."""

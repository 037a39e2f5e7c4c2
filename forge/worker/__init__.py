"""Running handlers. A worker is handed claims and answers endings; it opens no database of its own."""

"""One file per command; each parses and delegates, with heavy imports inside."""

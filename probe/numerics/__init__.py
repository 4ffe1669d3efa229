"""Arrays in, arrays out: no files, no printing, no global random state."""

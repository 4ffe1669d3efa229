"""Numbers that follow from records: pure functions, with intervals paired over images."""

"""Training of the controlled variants and of the demo model; imports `probe`, never the reverse."""

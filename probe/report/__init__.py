"""What users see: screens, figures and tables, each a pure function of the JSON output."""

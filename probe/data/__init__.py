"""Where images come from and how they become a model's input. Nothing is imported here."""

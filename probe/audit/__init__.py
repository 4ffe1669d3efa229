"""What a model's interface keeps, discards and can communicate: exact checks and analytic costs."""

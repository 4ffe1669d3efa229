"""Additive statistics: updated batch by batch, then turned into numbers."""

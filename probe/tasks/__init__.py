"""Controlled tasks: rendered scenes in which one factor varies and a linear readout is asked.

Every factor of a scene is set independently and every random choice is seeded, so that a curve of
accuracy over one factor speaks of that factor alone. Models are frozen; what is fitted is logistic
regression on their pooled last tokens.
"""

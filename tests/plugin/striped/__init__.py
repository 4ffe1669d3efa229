"""A package of somebody else, which adds one thing of each kind to `probe`."""

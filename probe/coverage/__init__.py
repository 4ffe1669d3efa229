"""Which architectures of timm and transformers `probe` reads, found out by building each of them.

`timm.yaml` and `transformers.yaml` are the denominator: every architecture with patch tokens on a
grid, and what was left out and why. What works is never taken from them.
"""

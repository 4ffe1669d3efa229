"""Corruptions: 8-bit RGB to 8-bit RGB at model resolution, after resize and crop.

A new one is a function `(image, generator, **parameters)` in a file of this package and one line in
`kinds.py`; parsing, file names and the property tests follow from that line. Another package adds a
`Kind` through the entry point group `probe.corruptions`; see docs/plugins.md.
"""

from probe.corruptions.corruption import Corruption, parse, suite

__all__ = ["Corruption", "parse", "suite"]

"""Benchmarks: two or more ways of doing the same thing, side by side.

Measures code that is elsewhere; nothing outside of this package imports it. May ask
``simulation.engines``, ``simulation.tables`` and all of ``fed3r_app`` but its ``cli``.
"""

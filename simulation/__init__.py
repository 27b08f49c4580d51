"""Simulations on one machine: engines, experiments, analyses and benchmarks.

Runs the two apps of ``fed3r_app`` as they are; no method and no file format is defined
here. May ask everything but the command line, which calls it.
"""

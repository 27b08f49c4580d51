"""Benchmarks: two or more ways of doing the same thing, side by side."""

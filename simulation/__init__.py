"""Simulations on one machine: Flower runs with a SuperLink of their own."""

"""Flower's processes on real machines: SuperLink, nodes, certificates, demo data.

Starts, stops and queries programs; knows nothing of statistics or models. May ask the
rooms below ``runs``; the command line, the engines and the tests use it.
"""

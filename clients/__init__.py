"""Flower NumPyClients: what happens where the data is.

Imports nothing by itself: a real node starts a process for every message, and most
parts need torch.
"""

"""Flower NumPyClients: what happens where the data is."""

from clients.local_data import LocalData
from clients.statistics_client import StatisticsClient

__all__ = ["LocalData", "StatisticsClient"]

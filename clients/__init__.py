"""Flower NumPyClients: what happens where the data is."""

from clients.local_data import LocalData
from clients.node import Node
from clients.secure_client import SecureClient
from clients.statistics_client import StatisticsClient
from clients.training_client import ControlVariates, TrainingClient

__all__ = [
    "ControlVariates",
    "LocalData",
    "Node",
    "SecureClient",
    "StatisticsClient",
    "TrainingClient",
]

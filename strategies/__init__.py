"""Flower strategies: what the server does with the clients' replies."""

from strategies.cohorts import Cohorts
from strategies.fed3r import Fed3R
from strategies.fedncm import FedNCM
from strategies.roster import Roster, meet_clients

__all__ = ["Cohorts", "Fed3R", "FedNCM", "Roster", "meet_clients"]

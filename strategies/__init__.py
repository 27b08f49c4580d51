"""Flower strategies: what the server does with the clients' replies."""

from strategies.client_evaluation import evaluate_on_clients
from strategies.cohorts import Cohorts
from strategies.exchange import IN_FLIGHT, exchange, printable
from strategies.fed3r import Fed3R
from strategies.fedncm import FedNCM
from strategies.optimizers import make_optimizer, optimizer_state, restore_optimizer
from strategies.release import Release
from strategies.roster import Reception, Roster, natural_key
from strategies.scaffold import Scaffold
from strategies.secure_aggregation import SecureAggregation, SecureFedNCM
from strategies.secure_cohorts import SecureCohorts
from strategies.training_rounds import TrainedRound, TrainingRounds

__all__ = [
    "IN_FLIGHT",
    "Cohorts",
    "Fed3R",
    "FedNCM",
    "Reception",
    "Release",
    "Roster",
    "Scaffold",
    "SecureAggregation",
    "SecureCohorts",
    "SecureFedNCM",
    "TrainedRound",
    "TrainingRounds",
    "evaluate_on_clients",
    "exchange",
    "make_optimizer",
    "natural_key",
    "optimizer_state",
    "printable",
    "restore_optimizer",
]

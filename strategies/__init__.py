"""Flower strategies: what the server does with the clients' replies."""

from strategies.client_evaluation import evaluate_on_clients
from strategies.discovery import ClientDiscovery, ClientRegistry, natural_key
from strategies.fed3r import Fed3R
from strategies.fedncm import FedNCM
from strategies.messaging import IN_FLIGHT, printable, stream_replies
from strategies.optimizers import make_optimizer, optimizer_state, restore_optimizer
from strategies.release import Release
from strategies.sampling import CohortSampler
from strategies.scaffold import Scaffold
from strategies.secagg import SecureAggregation, SecureFedNCM
from strategies.secagg_sampling import GroupSampler
from strategies.training_rounds import TrainedRound, TrainingRounds

__all__ = [
    "IN_FLIGHT",
    "ClientDiscovery",
    "ClientRegistry",
    "CohortSampler",
    "Fed3R",
    "FedNCM",
    "GroupSampler",
    "Release",
    "Scaffold",
    "SecureAggregation",
    "SecureFedNCM",
    "TrainedRound",
    "TrainingRounds",
    "evaluate_on_clients",
    "make_optimizer",
    "natural_key",
    "optimizer_state",
    "printable",
    "restore_optimizer",
    "stream_replies",
]

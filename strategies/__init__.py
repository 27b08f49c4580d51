"""Flower strategies: what the server does with the clients' replies.

Requests, replies, sampling and aggregation live here; the mathematics is ``core``'s and
what is written to disk ``runs``'s. May ask everything below ``fed3r_app.server``.
"""

from strategies.accumulator import Accumulator
from strategies.client_evaluation import ClientEvaluation, evaluate_on_clients
from strategies.discovery import ClientDiscovery
from strategies.fed3r import Fed3R, FedNCM
from strategies.identity import NodeNames
from strategies.journal import Journal
from strategies.messaging import (
    IN_FLIGHT,
    Traffic,
    one_line,
    same_request,
    stream_replies,
)
from strategies.optimizers import (
    make_optimizer,
    move_model,
    optimizer_state,
    restore_optimizer,
)
from strategies.registry import ClientRegistry, natural_key
from strategies.sampling import CohortSampler
from strategies.scaffold import Scaffold
from strategies.secagg import SecureAggregation
from strategies.secagg_sampling import GroupSampler
from strategies.solver import HeadSolver
from strategies.training_rounds import DivergedError, TrainedRound, TrainingRounds

__all__ = [
    "IN_FLIGHT",
    "Accumulator",
    "ClientDiscovery",
    "ClientEvaluation",
    "ClientRegistry",
    "CohortSampler",
    "DivergedError",
    "Fed3R",
    "FedNCM",
    "GroupSampler",
    "HeadSolver",
    "Journal",
    "NodeNames",
    "Scaffold",
    "SecureAggregation",
    "Traffic",
    "TrainedRound",
    "TrainingRounds",
    "evaluate_on_clients",
    "make_optimizer",
    "move_model",
    "natural_key",
    "one_line",
    "optimizer_state",
    "restore_optimizer",
    "same_request",
    "stream_replies",
]

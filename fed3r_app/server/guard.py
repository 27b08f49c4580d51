"""Ends a fine-tuning that destroys its model, by what the clients say on receipt.

Each client of a round reports what the model it was sent gets right on its training
images, before it trains. No test image has a part in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from fed3r_app.core import Metrics
from fed3r_app.server.training_fit import accuracies

# A model below this share of the start's accuracy, in so many rounds one after the
# other, is lost. Rounds differ in their clients, and one step back may be regained.
_LEAST_SHARE, _BAD_ROUNDS = 0.8, 2


@dataclass(eq=False)
class Guard:
    """Compares the models of a fine-tuning with their start.

    Parameters
    ----------
    start : mapping
        What the start gets right, by client, with each image left out of it: what it
        was solved from it gets right more often than any other model will.

    last_good : tuple
        Number of rounds and arrays of the last model that was found good; at first,
        the start.

    Attributes
    ----------
    bad_rounds : int
        How many of the latest models were found bad.
    """

    start: Mapping[str, Metrics]
    last_good: tuple[int, Mapping[str, Tensor]]
    bad_rounds: int = 0

    def ends(
        self, received: Mapping[str, Metrics], rounds: int, model: Mapping[str, Tensor]
    ) -> str | None:
        """Return why the fine-tuning must end, None if it may go on.

        ``received`` is what the model after so many ``rounds`` gets right by client.
        """
        now, then = accuracies(received, self.start)
        if now is None or then is None:  # nothing to compare says nothing
            return None
        if now < _LEAST_SHARE * then:
            self.bad_rounds += 1
            if self.bad_rounds < _BAD_ROUNDS:
                return None
            return (
                f"on their training images the clients of rounds {rounds} and "
                f"{rounds + 1} get {now:.1%} with the model, {then:.1%} with the start"
            )
        self.bad_rounds = 0
        self.keep(rounds, model)
        return None

    def keep(self, rounds: int, model: Mapping[str, Tensor]) -> None:
        """Take a copy of a model as the last good one."""
        self.last_good = rounds, {k: v.detach().clone() for k, v in model.items()}

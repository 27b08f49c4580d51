"""What a ridge classifier says of its own training images, as if it had not seen them.

With h_i = z_i'(A + lam I)^-1 z_i the ridge prediction for image i without that image is
(f_i - h_i y_i) / (1 - h_i), f_i with it and y_i one-hot. As in generalised
cross-validation, h_i is replaced by its mean df / n: one number instead of a matrix.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fed3r_app.core.heads import cholesky
from fed3r_app.core.statistics import RidgeStatistics


@dataclass(frozen=True, eq=False)
class LeaveOneOut:
    """How the logits of a training image change when it is left out.

    Parameters
    ----------
    leverage : float
        df / n: the share of itself in the prediction for an image, 0 <= leverage < 1.
    scale : Tensor of shape (C,)
        1 / ||W_c|| before the classes were normalised: logits are in these units.
    """

    leverage: float
    scale: Tensor

    @classmethod
    def of(cls, stats: RidgeStatistics, W: Tensor, lam: float) -> LeaveOneOut:
        """Return it for the ridge solution W (d, C), with normalised columns or not."""
        # df = tr A (A + lam I)^-1 = d - lam tr (A + lam I)^-1.
        L = cholesky(stats.A, lam, float(stats.diagonal.abs().mean()))
        freedom = stats.d - lam * float(torch.cholesky_inverse(L).trace())
        # (A + lam I) s_c W_c = b_c is solved by the column before it was divided.
        own = (W * (stats.A @ W + lam * W)).sum(dim=0)
        found = (W * stats.b).sum(dim=0)
        scale = torch.where(found > 0, own / found, torch.zeros_like(found))
        return cls(min(max(freedom / stats.n, 0.0), _MOST), scale)

    def logits(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return the logits (n, C) of images with labels y (n,), left out each."""
        left_out = logits.clone()
        own = self.scale.to(logits)[y] * self.leverage
        left_out[torch.arange(len(y)), y] -= own
        return left_out / (1 - self.leverage)


# Of a classifier that reproduces its training images nothing is left to be learned.
_MOST = 0.99

"""The mathematics of Fed3R: statistics that add up, and what is solved from them.

Pure functions and values on float64 torch tensors, on any device; no Flower, no
files, no logging. Asks no other room. The symbols are the paper's:

    ======  =========  ==========================================================
    symbol  shape      meaning
    ======  =========  ==========================================================
    Z       (n, d)     features of n images
    y, Y    (n,)       labels, and their one-hot matrix (n, C), which is never built
    A       (d, d)     Z'Z
    b       (d, C)     Z'Y
    R, S    (r, d)     a thin factor: A = R'R and b = R'S, S of shape (r, C_k)
    W       (d, C)     classifier; the prediction for z is the argmax of z'W
    lam     scalar     ridge penalty
    D       scalar     number of random features, where they replace the d
    ======  =========  ==========================================================
"""

from functools import partial
from typing import TYPE_CHECKING

from fed3r_app.core.lazy import find_name

if TYPE_CHECKING:
    from fed3r_app.core.consistency import InconsistentStatistics, check_contribution
    from fed3r_app.core.factors import FactorBuilder, StatisticsFactor
    from fed3r_app.core.feature_map import FeatureMap, Limits
    from fed3r_app.core.gcv import Penalty, select_lambda, select_penalty
    from fed3r_app.core.heads import (
        HEADS,
        Classifier,
        Head,
        HeadOptions,
        class_means,
        count_correct,
        predict,
        solve_head,
        solve_lda,
        solve_ridge,
    )
    from fed3r_app.core.leave_one_out import LeaveOneOut
    from fed3r_app.core.metrics import METRICS, Metrics
    from fed3r_app.core.random_features import FeatureMoments, RandomFeatures
    from fed3r_app.core.running_sum import RunningSum
    from fed3r_app.core.sketch import Sketch, SketchVectors
    from fed3r_app.core.statistics import Contribution, RidgeStatistics

__all__ = [
    "HEADS",
    "METRICS",
    "Classifier",
    "Contribution",
    "FactorBuilder",
    "FeatureMap",
    "FeatureMoments",
    "Head",
    "HeadOptions",
    "InconsistentStatistics",
    "LeaveOneOut",
    "Limits",
    "Metrics",
    "Penalty",
    "RandomFeatures",
    "RidgeStatistics",
    "RunningSum",
    "Sketch",
    "SketchVectors",
    "StatisticsFactor",
    "check_contribution",
    "class_means",
    "count_correct",
    "predict",
    "select_lambda",
    "select_penalty",
    "solve_head",
    "solve_lda",
    "solve_ridge",
]

# What needs no SciPy comes first.
_LIGHT = (
    *("statistics", "metrics", "heads", "leave_one_out"),
    *("random_features", "feature_map"),
)
_MODULES = (*_LIGHT, "running_sum", "sketch", "consistency", "factors", "gcv")
__getattr__ = partial(find_name, __name__, _MODULES)

"""Names that settings, formats and registries share: methods, forms of an upload.

Imports nothing heavy, so that reading a run config does not need torch.
"""

from typing import NamedTuple


class Method(NamedTuple):
    """A way to a classifier in closed form: features, and a head on top of them."""

    head: str  # of ``fed3r_app.core.heads``
    random_features: bool = False
    takes_intercept: bool = True
    takes_noise: bool = True  # that of differential privacy


METHODS = {
    "fed3r": Method("ridge"),
    "fed3r-rf": Method("ridge", random_features=True),
    "fedncm": Method("class-means", takes_intercept=False),
    "lda": Method("lda", takes_intercept=False, takes_noise=False),
}
# Forms of an upload and the types of its numbers; their order is part of the format.
FORMS = ("factor", "packed", "dense")
DTYPES = ("float32", "float64", "float16")

# Of an image as a network sees it: few enough pixels for any machine to make one.
LARGEST_SIDE = 4096

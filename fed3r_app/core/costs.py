"""What Fed3R costs by the paper's formulas, whatever really travelled.

A value is 4 bytes (FP32) and a multiply-add one FLOP. With random features, their
number D stands for d.
"""

from __future__ import annotations

BYTES_PER_VALUE = 4


def statistics_upload_bytes(d: int, num_classes: int, num_clients: int = 1) -> int:
    """Return the bytes of dense A (d, d) and b (d, C): d^2 + dC values a client."""
    return BYTES_PER_VALUE * num_clients * (d * d + d * num_classes)


def class_means_upload_bytes(d: int, num_classes: int, num_clients: int = 1) -> int:
    """Return the bytes of the statistics that FedNCM alone would need: b (d, C)."""
    return BYTES_PER_VALUE * num_clients * d * num_classes


def backbone_download_bytes(backbone_values: int, num_clients: int = 1) -> int:
    """Return the bytes of a backbone that clients don't have: b values each, once.

    All that Fed3R ever sends to a client by the paper's count, and nothing where the
    backbone is there already.
    """
    return BYTES_PER_VALUE * num_clients * backbone_values


def training_bytes(values: int, clients_per_round: int, rounds: int) -> int:
    """Return the bytes of t rounds with kappa clients, in one direction.

    ``values`` are those of one client in one round: see ``trained_values``.
    """
    return BYTES_PER_VALUE * values * clients_per_round * rounds


def statistics_flops(
    num_samples: float, d: int, num_classes: int, forward_flops: float
) -> float:
    """Return the FLOPs of a client's statistics: n (F_phi + d(d+1)/2 + dC).

    F_phi are those of one image through the backbone. With n the samples aggregated so
    far divided by the number of all clients, it is the average per client.
    """
    return num_samples * (forward_flops + d * (d + 1) / 2 + d * num_classes)


def trained_values(
    finetune: str, backbone_values: int, classifier_values: int, scaffold: bool
) -> int:
    """Return the values a client receives, and sends, in a round of fine-tuning.

    With b trainable parameters of the backbone and c = dC: b + c for ``full``, c for
    ``lp``, b for ``feat``; twice that with Scaffold, whose control variates travel too.
    """
    trained = {
        "full": backbone_values + classifier_values,
        "lp": classifier_values,
        "feat": backbone_values,
    }[finetune]
    return 2 * trained if scaffold else trained


def training_flops(
    finetune: str, num_samples: float, epochs: int, forward_flops: float, d_times_c: int
) -> float:
    """Return the FLOPs of a client in a round of fine-tuning.

    A backward pass costs two forward ones: 3 E n (F_phi + F_head), and for ``lp``
    E n (F_phi + 3 F_head), as in the paper, which runs the backbone in every epoch.
    """
    if finetune == "lp":
        return epochs * num_samples * (forward_flops + 3 * d_times_c)
    return 3 * epochs * num_samples * (forward_flops + d_times_c)

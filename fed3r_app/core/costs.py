"""What Fed3R costs by the paper's formulas, whatever really travelled.

A value is 4 bytes (FP32) and a multiply-add one FLOP. With random features, their
number D stands for d.
"""

from __future__ import annotations

BYTES_PER_VALUE = 4


def statistics_upload_bytes(d: int, num_classes: int, num_clients: int = 1) -> int:
    """Return the bytes that clients send as dense matrices: A (d, d) and b (d, C).

    Each client sends d^2 + dC values, once.
    """
    return BYTES_PER_VALUE * num_clients * (d * d + d * num_classes)


def class_means_upload_bytes(d: int, num_classes: int, num_clients: int = 1) -> int:
    """Return the bytes of the sums that FedNCM alone would need: b (d, C)."""
    return BYTES_PER_VALUE * num_clients * d * num_classes


def backbone_download_bytes(backbone_values: int, num_clients: int = 1) -> int:
    """Return the bytes of a backbone that clients don't have: b values each, once.

    All that Fed3R ever sends to a client by the paper's count, and nothing where the
    backbone is there already.
    """
    return BYTES_PER_VALUE * num_clients * backbone_values


def training_bytes(values: int, clients_per_round: int, rounds: int) -> int:
    """Return the bytes of some rounds of training, in one direction.

    Parameters
    ----------
    values : int
        Values that one client receives, or sends, in a round: see ``trained_values``.
    clients_per_round, rounds : int
        kappa and t.
    """
    return BYTES_PER_VALUE * values * clients_per_round * rounds


def average_flops(
    client_flops: float, clients_per_round: int, rounds: int, num_clients: int
) -> float:
    """Return the FLOPs of the average client after t rounds: flops t kappa / K.

    ``client_flops`` are those of one client in one round; a run of two phases has the
    sum of both.
    """
    return client_flops * clients_per_round * rounds / num_clients


def statistics_flops(
    num_samples: float, d: int, num_classes: int, forward_flops: float
) -> float:
    """Return the FLOPs of a client's statistics: n (F_phi + d(d+1)/2 + dC).

    Parameters
    ----------
    num_samples : float
        n. All samples counted so far divided by the number of clients, counted or
        not, gives the average per client at that moment.
    d, num_classes : int
        Number of features and of classes.
    forward_flops : float
        F_phi, of one image through the backbone.
    """
    return num_samples * (forward_flops + d * (d + 1) / 2 + d * num_classes)


def trained_values(
    finetune: str, backbone_values: int, classifier_values: int, scaffold: bool
) -> int:
    """Return the values a client receives, and sends, in a round of fine-tuning.

    m = b + c for ``full``, c for ``lp``, b for ``feat``; twice that with Scaffold,
    whose control variates travel too.

    Parameters
    ----------
    finetune : str
        ``full``, ``lp`` or ``feat``.
    backbone_values, classifier_values : int
        b, the trainable parameters of the backbone, and c = dC.
    scaffold : bool
        Whether control variates travel.
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

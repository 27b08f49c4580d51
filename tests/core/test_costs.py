"""The paper's cost formulas, against numbers worked out by hand."""

from typing import Any

import pytest
import torch
from torch import nn
from torchvision.models import mobilenet_v2

from fed3r_app.core.costs import (
    backbone_download_bytes,
    class_means_upload_bytes,
    statistics_flops,
    statistics_upload_bytes,
    trained_values,
    training_bytes,
    training_flops,
)
from fed3r_app.features.flops import count_forward_flops

# F_phi of MobileNetV2 at 224 px, and its parameters, in the paper.
FORWARD, BACKBONE = 332.9e6, 2_223_872
FEDERATIONS = ["Landmarks", "iNaturalist", "CIFAR-100"]


# 1280^2 = 1,638,400; 1280 C = 2,595,840 / 1,539,840 / 128,000; 4 bytes each.
@pytest.mark.parametrize(
    ("num_classes", "num_clients", "per_client", "in_all"),
    [
        (2028, 1262, 16_936_960, 21_374_443_520),
        (1203, 9275, 12_712_960, 117_912_704_000),
        (100, 100, 7_065_600, 706_560_000),
    ],
    ids=FEDERATIONS,
)
def test_dense_uploads_of_the_papers_federations(
    num_classes: int, num_clients: int, per_client: Any, in_all: Any
) -> None:
    assert statistics_upload_bytes(1280, num_classes) == per_client
    assert statistics_upload_bytes(1280, num_classes, num_clients) == in_all


def test_uploads_of_class_means_and_of_random_features() -> None:
    assert class_means_upload_bytes(1280, 100, num_clients=100) == 51_200_000
    # (10,000^2 + 10,000 * 1203) * 4
    assert statistics_upload_bytes(10_000, 1203) == 448_120_000


# d(d+1)/2 = 819,840; so a sample costs 332.9e6 + 819,840 + 1280 C.
@pytest.mark.parametrize(
    ("mean_samples", "d", "num_classes", "expected"),
    [
        (119.9, 1280, 2028, 119.9 * 336_315_680),
        (13.0, 1280, 1203, 13.0 * 335_259_680),
        (500, 1280, 100, 166_923_920_000),
        # 10,000 * 10,001 / 2 = 50,005,000 and 10,000 * 1203 = 12,030,000
        (2, 10_000, 1203, 2 * (332_900_000 + 50_005_000 + 12_030_000)),
    ],
    ids=[*FEDERATIONS, "random features"],
)
def test_flops_of_an_average_client_of_the_papers_federations(
    mean_samples: float, d: int, num_classes: int, expected: float
) -> None:
    flops = statistics_flops(mean_samples, d, num_classes, FORWARD)
    assert flops == pytest.approx(expected, rel=1e-12)


def test_the_backbone_of_the_paper() -> None:
    backbone = mobilenet_v2().features.eval()
    assert sum(value.numel() for value in backbone.parameters()) == BACKBONE
    flops = count_forward_flops(backbone, 224)
    assert flops == 332_884_832
    assert round(flops / 1e6, 1) == 332.9


def test_a_network_counted_by_hand() -> None:
    network = nn.Sequential(
        nn.Conv2d(1, 2, 3),  # 6 x 6 x 2 outputs of 9 multiply-adds
        nn.BatchNorm2d(2),  # 72 values
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(72, 5),
    ).eval()
    expected = 72 * 9 + 5 * 72 + 72 * 5
    assert count_forward_flops(network, 8, channels=1) == expected
    # Counting leaves no hook behind that would count twice.
    assert count_forward_flops(network, 8, channels=1) == expected
    assert count_forward_flops(nn.Flatten(), 8, channels=1) == 0  # pixels


def test_counting_leaves_the_network_as_it_was() -> None:
    network = nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2)).double().eval()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    count_forward_flops(network, 8)
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name])
    assert not network[1]._forward_hooks


# b = 2,223,872 and c = 1280 C = 2,595,840 / 1,539,840 / 128,000, so that
# m = 4,819,712 / 3,763,712 / 2,351,872; 4 bytes each.
@pytest.mark.parametrize(
    ("num_classes", "full", "lp"),
    [
        (2028, 4_819_712, 2_595_840),
        (1203, 3_763_712, 1_539_840),
        (100, 2_351_872, 128_000),
    ],
    ids=FEDERATIONS,
)
def test_values_of_a_round_of_fine_tuning(num_classes: int, full: Any, lp: Any) -> None:
    expected = {"full": full, "lp": lp, "feat": 2_223_872}
    for finetune, values in expected.items():
        sizes = (BACKBONE, 1280 * num_classes)
        assert trained_values(finetune, *sizes, scaffold=False) == values
        assert trained_values(finetune, *sizes, scaffold=True) == 2 * values


# 10 clients a round, FP32, for 3000, 5000 and 1500 rounds: 4 m 10 t, in each direction.
@pytest.mark.parametrize(
    ("num_classes", "rounds", "fedavg", "scaffold_lp", "feat"),
    [
        (2028, 3000, 578_365_440_000, 623_001_600_000, 266_864_640_000),
        (1203, 5000, 752_742_400_000, 615_936_000_000, 444_774_400_000),
        (100, 1500, 141_112_320_000, 15_360_000_000, 133_432_320_000),
    ],
    ids=FEDERATIONS,
)
def test_all_bytes_of_the_papers_training(
    num_classes: int, rounds: Any, fedavg: Any, scaffold_lp: Any, feat: Any
) -> None:
    def bytes_of(finetune: Any, scaffold: Any) -> Any:
        values = trained_values(finetune, BACKBONE, 1280 * num_classes, scaffold)
        return training_bytes(values, 10, rounds)

    assert bytes_of("full", scaffold=False) == fedavg
    assert bytes_of("full", scaffold=True) == 2 * fedavg
    assert bytes_of("lp", scaffold=True) == scaffold_lp
    assert bytes_of("lp", scaffold=False) == scaffold_lp // 2
    assert bytes_of("feat", scaffold=False) == feat


def test_fed3r_downloads_a_backbone_once_or_nothing() -> None:
    assert backbone_download_bytes(0, num_clients=1262) == 0
    # 2,223,872 values of 4 bytes to each of 1262 clients
    assert backbone_download_bytes(BACKBONE, num_clients=1262) == 11_226_105_856


# F_head = 1280 C: 2.6, 1.5 and 0.1 million. E n 3 (F_phi + F_head), and for lp
# E n (F_phi + 3 F_head); 5 epochs, 1 for CIFAR-100.
@pytest.mark.parametrize(
    ("num_classes", "n", "epochs", "full", "lp"),
    [
        (2028, 119.9, 5, 599.5 * 3 * 335_495_840, 599.5 * 340_687_520),
        (1203, 13.0, 5, 65 * 3 * 334_439_840, 65 * 337_519_520),
        (100, 500, 1, 500 * 3 * 333_028_000, 500 * 333_284_000),
    ],
    ids=FEDERATIONS,
)
def test_flops_of_a_round_of_fine_tuning(
    num_classes: int, n: int, epochs: Any, full: Any, lp: Any
) -> None:
    expected = {"full": full, "feat": full, "lp": lp}
    for finetune, flops in expected.items():
        got = training_flops(finetune, n, epochs, FORWARD, 1280 * num_classes)
        assert got == pytest.approx(flops, rel=1e-12)


@pytest.mark.parametrize(
    ("num_classes", "model_mflops"), [(2028, 335.5), (1203, 334.4), (100, 333.0)]
)
def test_the_forward_pass_of_the_whole_model_is_the_papers(
    num_classes: int, model_mflops: Any
) -> None:
    flops = training_flops("full", 1, 1, FORWARD, 1280 * num_classes) / 3
    assert round(flops / 1e6, 1) == model_mflops

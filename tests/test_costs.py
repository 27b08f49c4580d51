"""The paper's cost formulas, against numbers worked out by hand."""

import pytest
import torch
from torch import nn
from torchvision.models import mobilenet_v2

from fed3r_app.costs import (
    class_means_upload_bytes,
    count_forward_flops,
    statistics_flops,
    statistics_upload_bytes,
)

# F_phi of MobileNetV2 at 224 px, in the paper.
FORWARD = 332.9e6


# 1280^2 = 1,638,400; 1280 C = 2,595,840 / 1,539,840 / 128,000; 4 bytes each.
@pytest.mark.parametrize(
    ("num_classes", "num_clients", "per_client", "in_all"),
    [
        (2028, 1262, 16_936_960, 21_374_443_520),
        (1203, 9275, 12_712_960, 117_912_704_000),
        (100, 100, 7_065_600, 706_560_000),
    ],
    ids=["Landmarks", "iNaturalist", "CIFAR-100"],
)
def test_dense_uploads_of_the_papers_federations(
    num_classes, num_clients, per_client, in_all
):
    assert statistics_upload_bytes(1280, num_classes) == per_client
    assert statistics_upload_bytes(1280, num_classes, num_clients) == in_all


def test_class_means_need_no_matrix_between_features():
    assert class_means_upload_bytes(1280, 100, num_clients=100) == 51_200_000


def test_dense_upload_with_random_features():
    # (10,000^2 + 10,000 * 1203) * 4
    assert statistics_upload_bytes(10_000, 1203) == 448_120_000


# d(d+1)/2 = 819,840; so a sample costs 332.9e6 + 819,840 + 1280 C.
@pytest.mark.parametrize(
    ("mean_samples", "num_classes", "expected"),
    [
        (119.9, 2028, 119.9 * 336_315_680),
        (13.0, 1203, 13.0 * 335_259_680),
        (500, 100, 166_923_920_000),
    ],
    ids=["Landmarks", "iNaturalist", "CIFAR-100"],
)
def test_flops_of_an_average_client_of_the_papers_federations(
    mean_samples, num_classes, expected
):
    flops = statistics_flops(mean_samples, 1280, num_classes, FORWARD)
    assert flops == pytest.approx(expected, rel=1e-12)


def test_flops_with_random_features():
    # 10,000 * 10,001 / 2 = 50,005,000 and 10,000 * 1203 = 12,030,000
    flops = statistics_flops(2, 10_000, 1203, FORWARD)
    assert flops == 2 * (332_900_000 + 50_005_000 + 12_030_000)


def test_the_forward_pass_of_mobilenet_is_the_papers():
    flops = count_forward_flops(mobilenet_v2().features.eval(), 224)
    assert flops == 332_884_832
    assert round(flops / 1e6, 1) == 332.9


def test_a_network_counted_by_hand():
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


def test_counting_leaves_the_network_as_it_was():
    network = nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2)).double().eval()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    count_forward_flops(network, 8)
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name])
    assert not network[1]._forward_hooks


def test_pixels_cost_nothing():
    assert count_forward_flops(nn.Flatten(), 8, channels=1) == 0

"""The Flower ClientApp: says hello, makes statistics, trains, evaluates."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.clientapp import ClientApp

from clients import Node, StatisticsClient, bridge
from clients.training_setup import TrainingNode
from fed3r_app.core import FeatureMap
from fed3r_app.privacy import check_feature_map
from fed3r_app.wire import (
    BACKBONE,
    ON_TEST_IMAGES,
    Hello,
    add_digest,
    keep_names,
    name_arrays,
    pack_hello,
    pack_losses,
    read_feature_map,
    read_labels,
    read_temperatures,
    unpack_arrays,
    unpack_classifier,
)

app = ClientApp()


@app.query("hello")
@bridge.reply_with_errors
def hello(message: Message, context: Context) -> Message:
    """Say who this client is, and what its classes are where they are its own.

    The sums of its features come with it where asked for.
    """
    node, moments = Node(context), None
    if _config(message)["moments"]:
        moments = _statistics_client(node, FeatureMap(node.backbone.dim)).moments()
    reply = Hello(node.client_id, node.num_partitions, moments)
    if node.has_own_images:
        test = node.dataset.test
        reply = replace(
            reply,
            class_names=node.dataset.class_names,
            num_test_images=len(test) if test else 0,
        )
    return Message(pack_hello(reply), reply_to=message)


@app.train("statistics")
@bridge.reply_with_errors
def statistics(message: Message, context: Context) -> Message:
    """Reply with the statistics of this client's images, and what they are made of.

    Arrays that come with the question are a fine-tuned backbone.
    """
    node = Node(context, unpack_arrays(_arrays(message)), _labels(message))
    feature_map = read_feature_map(_config(message))
    client = _statistics_client(node, feature_map)
    reply = bridge.fit(client, message, name_arrays)
    add_digest(reply.content, node.contribution_digest(feature_map))
    return reply


@app.evaluate("statistics")
@bridge.reply_with_errors
def evaluate(message: Message, context: Context) -> Message:
    """Reply with what the given classifier gets right on this client's images.

    On its test images where the question says so. A record of a fine-tuned backbone
    may stand beside the classifier.
    """
    tuned = unpack_arrays(message.content.array_records.get(BACKBONE, ArrayRecord()))
    node = Node(context, tuned, _labels(message))
    test = bool(_config(message).get(ON_TEST_IMAGES, False))
    feature_map = read_feature_map(_config(message))
    return bridge.evaluate(_statistics_client(node, feature_map, test=test), message)


@app.query("temperature")
@bridge.reply_with_errors
def temperature(message: Message, context: Context) -> Message:
    """Reply with the loss of a classifier at each of some temperatures."""
    node = Node(context, labels=_labels(message))
    client = _statistics_client(node, read_feature_map(_config(message)))
    W, _ = unpack_classifier(_arrays(message).to_numpy_ndarrays())
    losses = client.losses(W, read_temperatures(_config(message)))
    return Message(pack_losses(losses), reply_to=message)


@app.train()
@bridge.reply_with_errors
def train(message: Message, context: Context) -> Message:
    """Reply with the arrays trained on this client's images."""
    node = TrainingNode(context, message.content)
    reply = bridge.fit(node.client, message, partial(keep_names, _arrays(message)))
    node.complete(reply.content)
    return reply


def _statistics_client(
    node: Node, feature_map: FeatureMap, *, test: bool = False
) -> StatisticsClient:
    check_feature_map(node.config.dp_epsilon, feature_map)
    upload, dtype = node.config.upload, node.config.upload_dtype
    return StatisticsClient(node.local_data(test=test), feature_map, upload, dtype)


def _labels(message: Message) -> tuple[str, ...] | None:
    return read_labels(_config(message))


def _config(message: Message) -> ConfigRecord:
    return message.content.config_records["config"]


def _arrays(message: Message) -> ArrayRecord:
    return message.content.array_records["arrays"]

"""The Flower ClientApp: says hello, makes statistics, trains, evaluates."""

from __future__ import annotations

from functools import partial

from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.clientapp import ClientApp

from clients import Node, StatisticsClient, bridge
from clients.training_setup import TrainingNode
from fed3r_app.core import FeatureMap
from fed3r_app.wire import (
    Hello,
    add_digest,
    keep_names,
    name_arrays,
    pack_hello,
    pack_losses,
    read_feature_map,
    read_temperatures,
    unpack_arrays,
    unpack_classifier,
)

app = ClientApp()


@app.query("hello")
@bridge.reply_with_errors
def hello(message: Message, context: Context) -> Message:
    """Say who this client is, with the sums of its features where asked for."""
    node, moments = Node(context), None
    if _config(message)["moments"]:
        moments = _statistics_client(node, FeatureMap(node.backbone.dim)).moments()
    reply = Hello(node.client_id, node.num_partitions, moments)
    return Message(pack_hello(reply), reply_to=message)


@app.train("statistics")
@bridge.reply_with_errors
def statistics(message: Message, context: Context) -> Message:
    """Reply with the statistics of this client's images, and what they are made of.

    Arrays that come with the question are a fine-tuned backbone.
    """
    node = Node(context, unpack_arrays(_arrays(message)))
    feature_map = read_feature_map(_config(message))
    client = _statistics_client(node, feature_map)
    reply = bridge.fit(client, message, name_arrays)
    add_digest(reply.content, node.contribution_digest(feature_map))
    return reply


@app.evaluate("statistics")
@bridge.reply_with_errors
def evaluate(message: Message, context: Context) -> Message:
    """Reply with what the given classifier gets right on this client's images."""
    client = _statistics_client(Node(context), read_feature_map(_config(message)))
    return bridge.evaluate(client, message)


@app.query("temperature")
@bridge.reply_with_errors
def temperature(message: Message, context: Context) -> Message:
    """Reply with the loss of a classifier at each of some temperatures."""
    client = _statistics_client(Node(context), read_feature_map(_config(message)))
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


def _statistics_client(node: Node, feature_map: FeatureMap) -> StatisticsClient:
    upload, dtype = node.config.upload, node.config.upload_dtype
    return StatisticsClient(node.local_data(), feature_map, upload, dtype)


def _config(message: Message) -> ConfigRecord:
    return message.content.config_records["config"]


def _arrays(message: Message) -> ArrayRecord:
    return message.content.array_records["arrays"]

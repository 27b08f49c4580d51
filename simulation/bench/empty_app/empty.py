"""An app that exchanges as many messages as a Fed3R run, with nothing in them."""

from __future__ import annotations

import time
from collections.abc import Sequence

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

IN_FLIGHT = 32  # as many as Fed3R's
_PAUSE = 0.02

server = ServerApp()
client = ClientApp()


@client.query()
@client.train()
def answer(message: Message, context: Context) -> Message:
    """Reply with nothing."""
    return Message(RecordDict(), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Send a request to every client, then another one in rounds."""
    num_clients = int(context.run_config["num-clients"])
    per_round = int(context.run_config["clients-per-round"]) or num_clients
    while len(nodes := list(grid.get_node_ids())) < num_clients:
        time.sleep(0.2)
    replies = _ask(grid, nodes, "query")
    for start in range(0, num_clients, per_round):
        replies += _ask(grid, nodes[start : start + per_round], "train")
    if replies != 2 * num_clients:
        raise RuntimeError(f"{replies} of {2 * num_clients} messages came back.")


def _ask(grid: Grid, nodes: Sequence[int], message_type: str) -> int:
    """Return how many of the nodes replied."""
    requests = (
        Message(RecordDict(), dst_node_id=node, message_type=message_type)
        for node in nodes
    )
    waiting, replies = set[str](), 0
    while True:
        while len(waiting) < IN_FLIGHT and (request := next(requests, None)):
            waiting.update(grid.push_messages([request]))
        if not waiting:
            return replies
        arrived = list(grid.pull_messages(list(waiting)))
        waiting -= {reply.metadata.reply_to_message_id for reply in arrived}
        replies += len(arrived)
        if not arrived:
            time.sleep(_PAUSE)

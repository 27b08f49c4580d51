"""An engine without processes: the same ServerApp and ClientApp, in this process.

No Ray, no sockets: deterministic, quick to start, and a debugger can step into a
client. The records are those that travel otherwise, already serialised by Flower, so
that the bytes of a run are the real ones.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterable, Mapping

from flwr.app import Context, Error, Message, RecordDict
from flwr.app.user_config import UserConfig
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.run import Run

from strategies.flower_internals import enter_run, stamp

_SERVER = 1


class InlineGrid(Grid):
    """A Grid whose nodes are simulated clients, run when their replies are pulled.

    Every node runs ``client_app`` and sees the run's config.
    """

    def __init__(
        self, client_app: ClientApp, num_clients: int, run_config: UserConfig
    ) -> None:
        self._client_app = client_app
        # As in Flower: clients distinguish runs by their ids.
        self.run_id = secrets.randbits(63)
        shared = dict(run_config)
        self._contexts = {}
        for node in range(_SERVER + 1, _SERVER + 1 + num_clients):
            place: UserConfig = {"num-partitions": num_clients}
            place["partition-id"] = node - _SERVER - 1
            context = Context(self.run_id, node, place, RecordDict(), shared)
            self._contexts[node] = context
        self._waiting: dict[str, Message] = {}
        self._numbers = itertools.count(1)
        self._run: Run | None = None

    def set_run(self, run: Run) -> None:
        """Set the run."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run, where one was set."""
        assert self._run is not None
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Return a new message."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return all nodes."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Keep messages until their replies are pulled; return their ids."""
        pushed = {str(next(self._numbers)): message for message in messages}
        for message_id, message in pushed.items():
            stamp(message, message_id, _SERVER)
        self._waiting |= pushed
        return list(pushed)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Run the clients that were asked, and return their replies one by one."""
        for message_id in message_ids:
            if message_id in self._waiting:
                yield self._answer(self._waiting.pop(message_id))

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Return the replies to messages."""
        return list(self.pull_messages(self.push_messages(messages)))

    def _answer(self, message: Message) -> Message:
        context = self._contexts[message.metadata.dst_node_id]
        try:
            return self._client_app(message, context)
        except Exception as error:  # Flower, too, replies with an error
            code = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
            return Message(Error(code=code, reason=str(error)), reply_to=message)


def run_inline(
    server_app: ServerApp,
    client_app: ClientApp,
    num_clients: int,
    run_config: Mapping[str, str | int | float | bool],
) -> None:
    """Run an app to its end; what the ServerApp raises is raised here."""
    config = dict(run_config)
    grid = InlineGrid(client_app, num_clients, config)
    enter_run(grid.run_id, _SERVER, task_id=grid.run_id)
    server_app(grid, Context(grid.run_id, _SERVER, {}, RecordDict(), config))

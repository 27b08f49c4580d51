"""The Flower ClientApp: a greeter that is quick to start, and all else behind it.

On real nodes every message is a process of its own. Torch, half of the time such a
process takes, is imported only for requests that need it: `hello` does not.
"""

from __future__ import annotations

from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp

from clients import bridge
from clients.node import NodeData, client_name
from fed3r_app.console import logs
from fed3r_app.data import LOCAL
from fed3r_app.files import private_files
from fed3r_app.wire.hello import pack_hello
from fed3r_app.words import printable


class _QuickClientApp(ClientApp):
    """Answers a plain hello itself, and passes the other requests on."""

    def __call__(self, message: Message, context: Context) -> Message:
        """Return the reply to a message."""
        logs.configure()
        if context.run_config.get("dataset") != LOCAL:  # simulated, as a rule
            return self._reply(message, context)
        with logs.owned_by(printable(client_name(context))), private_files():
            return self._reply(message, context)

    def _reply(self, message: Message, context: Context) -> Message:
        if message.metadata.message_type == "query.hello":
            config = message.content.config_records.get("config", ConfigRecord())
            if not config.get("moments"):
                return hello(message, context)
        from clients.handlers import app as answers

        return answers(message, context)


@bridge.reply_with_errors
def hello(message: Message, context: Context) -> Message:
    """Say who this client is, and what its classes are where they are its own."""
    return Message(pack_hello(NodeData(context).hello()), reply_to=message)


app = _QuickClientApp()

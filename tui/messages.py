"""What the model's thread tells, as the message that Textual delivers."""

from __future__ import annotations

from dataclasses import dataclass

from textual.message import Message

from entropix_mlx.backends.events import Event, ForkGrew, Prefilled


@dataclass
class ModelReported(Message):
    """An event of the model's thread; posted there, handled on the app's."""

    event: Event

    def can_replace(self, message: Message) -> bool:
        """Replace an older report of the same that is still queued: of a prefill, of rollouts."""
        return (
            isinstance(self.event, Prefilled | ForkGrew)
            and isinstance(message, ModelReported)
            and type(message.event) is type(self.event)
        )

"""What the model's thread tells, as the message that Textual delivers."""

from __future__ import annotations

from dataclasses import dataclass

from textual.message import Message

from entropix_mlx.serving.events import Event, Prefilled


@dataclass
class ModelReported(Message):
    """An event of the model's thread; posted there, handled on the app's."""

    event: Event

    def can_replace(self, message: Message) -> bool:
        """Replace an older report of a prefill that is still queued."""
        return (
            isinstance(self.event, Prefilled)
            and isinstance(message, ModelReported)
            and isinstance(message.event, Prefilled)
        )

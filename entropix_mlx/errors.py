"""Every error that this package raises on purpose.

EntropixError
├── ModelNotFoundError        no folder, file, installed package or hub repository of that name
├── UnsupportedModelError     not a Llama-shaped architecture, or a feature of one not handled here
├── WeightsError              weights that are missing, damaged, or do not fit the configuration
├── TokenizerError            a tokenizer that is missing, or of a kind that cannot be built
├── OutputError               a folder, a page or stdout that cannot be written
├── ProfileError              a profile that cannot be found, parsed, or used
├── PolicyError               no such policy, or an option that it does not take
├── PromptError               an empty prompt, or messages that the chat template refuses
├── ContextLengthError        a prompt longer than the model's context
├── SessionError              a conversation that cannot be read or written, or a turn or step that
│                             it does not have
├── TraceError                a trace that cannot be read or written
├── BenchError                a program of the bench that failed, or its folder cannot be written
└── NonFiniteLogitsError      the model computed NaN or infinite logits

Each message says what is wrong and what to do next.
"""


class EntropixError(Exception):
    """The root of the tree: catch it to catch everything above."""


class ModelNotFoundError(EntropixError):
    """No folder, file, installed package or hub repository of that name."""


class UnsupportedModelError(EntropixError):
    """The architecture is not Llama-shaped, or uses a feature that is not handled."""


class WeightsError(EntropixError):
    """Weights are missing, truncated, or do not fit the configuration."""


class TokenizerError(EntropixError):
    """The tokenizer is missing, or of a kind that cannot be built."""


class OutputError(EntropixError):
    """A model folder, a page or stdout cannot be written."""


class ProfileError(EntropixError):
    """A profile cannot be found, parsed, or used."""


class PolicyError(EntropixError):
    """No such policy, or an option that the policy does not take."""


class PromptError(EntropixError):
    """The prompt is empty, or the chat template refuses the messages."""


class ContextLengthError(EntropixError):
    """The prompt does not fit into the model's context."""


class SessionError(EntropixError):
    """A conversation cannot be read or written, or has no such turn, answer or step."""


class TraceError(EntropixError):
    """A trace cannot be read or written."""


class BenchError(EntropixError):
    """A program that the bench starts failed, or its temporary folder cannot be written."""


class NonFiniteLogitsError(EntropixError):
    """The model computed NaN or infinite logits."""

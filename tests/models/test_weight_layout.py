"""What is said of how a model's weights are stored."""

import mlx.core as mx
import mlx.nn as nn

from entropix_mlx.models.llama.weight_layout import precision
from tests.conftest import make_tiny_model


def test_precision_is_that_of_most_weights():
    model = make_tiny_model(hidden_size=64, intermediate_size=64, head_dim=16)
    assert str(precision(model)) == precision(model).in_full() == "float32"
    assert str(precision(model, mx.bfloat16)) == "bfloat16"
    nn.quantize(model, 32, 4, class_predicate=lambda name, _: name.endswith("_proj"))
    assert str(precision(model)) == "4 bits"
    assert precision(model).in_full() == "4 bits in groups of 32"
    mixed = make_tiny_model(hidden_size=64, intermediate_size=64, head_dim=16)
    nn.quantize(mixed, 32, 8, class_predicate=lambda name, _: name.endswith("q_proj"))
    assert str(precision(mixed)) == "float32"

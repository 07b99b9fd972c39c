"""Flax modules and what binds one to a data set's shapes."""

from dfl_jax.models.cnn import CNN3, SmallCNN
from dfl_jax.models.initializers import INITIALIZERS, with_initializer
from dfl_jax.models.mlp import MLP
from dfl_jax.models.model import MODELS, Model, bind
from dfl_jax.models.vgg import VGG16

__all__ = [
    'CNN3',
    'INITIALIZERS',
    'MLP',
    'MODELS',
    'VGG16',
    'Model',
    'SmallCNN',
    'bind',
    'with_initializer',
]

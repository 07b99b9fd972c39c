"""Flax modules and what binds one to a data set's shapes."""

from dfl_jax.models.cnn import SmallCNN
from dfl_jax.models.mlp import MLP
from dfl_jax.models.model import MODELS, Model, bind

__all__ = ['MLP', 'MODELS', 'Model', 'SmallCNN', 'bind']

"""Flax modules and what binds one to a data set's shapes."""

from dfl_jax.models.architectures import MODES, architecture, expand
from dfl_jax.models.cnn import CNN3, VGG16, ConvNet, DropoutCNN, SmallCNN
from dfl_jax.models.efficientnet import EfficientNet
from dfl_jax.models.gru import GRU
from dfl_jax.models.initializers import INITIALIZERS, with_initializer
from dfl_jax.models.mlp import MLP, Linear
from dfl_jax.models.model import MODELS, Model, bind, first_weights, layers
from dfl_jax.models.resnet import PreActResNet
from dfl_jax.models.vit import ViT

"""The settings of a client's local training, which all gradient methods share."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax

from dfl_jax.checks import check_choice, check_range
from dfl_jax.data.augment import AUGMENTATIONS
from dfl_jax.execution import client_bytes
from dfl_jax.models import Model
from dfl_jax.training.losses import SUPERVISIONS
from dfl_jax.training.optimisers import Optimizer, Schedule, learning_rate_factor, named_optimiser

DP_UNITS = ('example', 'client')
CHUNK = 8  # samples whose gradients are formed at once, where each is clipped


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """How a client trains within one round. The optimiser's state starts afresh every round, unless
    the method has `lasting_optimizer`.

    Args:
      lr: learning rate of round 0.
      lr_decay: factor a round: round k = 0, 1, ... uses lr * lr_decay**k; 1 for none.
      lr_schedule: factor on the learning rate by round: `cosine:ROUNDS`, `warmup:ROUNDS`,
        `step:ROUND-ROUND-...:FACTOR` or several with commas, e.g. `warmup:5,cosine:100`; or
        package.module:factory, a function of the round k = 0, 1, ... (from Python also itself).
      batch_size: samples of a minibatch; a client with fewer samples takes all of them at each
        step.
      local_epochs: passes over its data that a client makes in a round, unless local_steps are
        set.
      local_steps: minibatches in a round, in place of local_epochs; the data are shuffled anew
        after every pass.
      optimizer: `sgd`, or another of optax by its name, e.g. `adamw`, `adam`, `rmsprop` or `lion`;
        or package.module:factory, a function of the learning rate that returns an optax optimiser
        (from Python also itself).
      optimizer_options: arguments of the optimizer, e.g. `b1=0.8,nesterov=true`, in place of
        optax's defaults.
      momentum: heavy-ball momentum of sgd, in [0, 1); other optimizers take optimizer_options.
      weight_decay: weight_decay * w is added to the gradient; if the optimiser has an argument of
        this name, as adamw has, decay is decoupled instead.
      clip_norm: bound on the norm of the gradient, before decay and momentum.
      sam_radius: rho of sharpness-aware minimisation, which takes the gradient at w + rho g / ||g||
        (Foret et al. 2021); 0 turns it off.
      sam_adaptive: take the gradient of SAM at w + rho w^2 g / || |w| g || (ASAM, Kwon et al.
        2021).
      supervision: loss on the labels: `ce` (that of the task: cross-entropy, or its own), `ace`
        (asymmetric cross-entropy) or `wsm` (re-weighted softmax).
      loss_cap: a minibatch with a larger loss than this, at the weights before any ascent of SAM,
        has no gradient; None for no bound.
      proximal: weight mu of the term mu/2 ||w - w_start||^2 in the loss (FedProx), with w_start the
        weights at the start of the round.
      augmentation: of training images: `none` or `standard` (random shift and mirroring).
      batch_sampling: `shuffle`; or, with dp_clip, `poisson`: every sample is in a minibatch with
        probability batch_size / N_i, each time anew.
      dp_unit: what is private: each `example` of a client, or the `client` as a whole.
      dp_clip: bound on the norm of the gradient of every example or, for a client, of the change of
        its model in a round.
      dp_noise_multiplier: standard deviation of the Gaussian noise on the sum of the clipped
        gradients, or on the clipped change, over dp_clip; None for no noise. The sum is divided by
        batch_size, whatever a minibatch has.

    Raises ValueError for a setting out of its range, or one that would have no effect.
    """

    lr: float
    lr_decay: float = 1.0
    lr_schedule: Schedule = ''
    batch_size: int
    local_epochs: int | None = 1
    local_steps: int | None = None
    optimizer: Optimizer = 'sgd'
    optimizer_options: str = ''
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip_norm: float | None = None
    sam_radius: float = 0.0
    sam_adaptive: bool = False
    supervision: str = 'ce'
    loss_cap: float | None = None
    proximal: float = 0.0
    augmentation: str = 'none'
    batch_sampling: str = 'shuffle'
    dp_unit: str = 'example'
    dp_clip: float | None = None
    dp_noise_multiplier: float | None = None

    def __post_init__(self):
        check_choice('supervision', self.supervision, SUPERVISIONS)
        check_choice('augmentation', self.augmentation, AUGMENTATIONS)
        if (self.local_epochs is None) == (self.local_steps is None):
            raise ValueError(
                f'local_epochs={self.local_epochs} and local_steps={self.local_steps}: '
                'set one of them, and leave the other out'
            )
        if not isinstance(self.lr, jax.core.Tracer):
            check_range('lr', self.lr, above=0)
        check_range('lr_decay (a factor a round)', self.lr_decay, above=0, most=1)
        check_range('momentum', self.momentum, least=0, below=1)
        for name in ('batch_size', 'local_epochs', 'local_steps'):
            if (count := getattr(self, name)) is not None:
                check_range(name, count, least=1)
        for name in ('weight_decay', 'sam_radius', 'proximal'):
            check_range(name, getattr(self, name), least=0)
        check_choice('batch_sampling', self.batch_sampling, ('shuffle', 'poisson'))
        check_choice('dp_unit', self.dp_unit, DP_UNITS)
        for name in ('clip_norm', 'loss_cap', 'dp_clip', 'dp_noise_multiplier'):
            if (bound := getattr(self, name)) is not None:
                check_range(name, bound, above=0)
        if self.momentum and self.optimizer != 'sgd':
            raise ValueError(f'momentum={self.momentum} is for sgd, not {self.optimizer}')
        named_optimiser(self.optimizer, self.optimizer_options, 0.1, self.momentum)
        learning_rate_factor(self.lr_schedule)
        if self.dp_clip is None:
            if self.dp_noise_multiplier is not None:
                raise ValueError(
                    f'dp_noise_multiplier={self.dp_noise_multiplier} is a multiple of dp_clip; set '
                    'dp_clip'
                )
            if self.dp_unit != 'example':
                raise ValueError(f'dp_unit={self.dp_unit} has no effect without dp_clip; set it')
        if self.batch_sampling == 'poisson' and not self.private_examples:
            raise ValueError(
                'batch_sampling=poisson is for clipped gradients of examples; set dp_clip, and '
                'leave dp_unit=example'
            )
        if self.private_examples:
            together = {'sam_radius': 0, 'loss_cap': None, 'supervision': 'ce'}
            for name, without in together.items():
                if (value := getattr(self, name)) != without:
                    raise ValueError(
                        f'{name}={value} makes the gradient of one example depend on the others, '
                        'which dp_clip does not bound; leave it out, or set dp_unit=client'
                    )
        if self.sam_adaptive and not self.sam_radius:
            raise ValueError('sam_adaptive has no effect while sam_radius is 0')

    def replace(self, **settings: Any) -> 'LocalTraining':
        """These settings with some of them replaced; steps stand in place of epochs, and back."""
        if 'local_steps' in settings and 'local_epochs' not in settings:
            settings['local_epochs'] = None
        elif 'local_epochs' in settings and 'local_steps' not in settings:
            settings['local_steps'] = None
        return dataclasses.replace(self, **settings)

    @property
    def linear_in_weights(self) -> bool:
        """Whether a step is linear in weights and gradient, and takes the samples as they are."""
        others = self.clip_norm, self.sam_radius, self.proximal
        plain = self.augmentation == 'none' and self.batch_sampling == 'shuffle'
        return self.optimizer == 'sgd' and plain and not any(others) and not self.private_examples

    @property
    def private_examples(self) -> bool:
        """Whether the gradient of every example is clipped."""
        return self.dp_clip is not None and self.dp_unit == 'example'

    def bytes_of_client(self, model: Model, samples: int) -> int:
        """Bytes of the training of a client of N samples, padded."""
        orders = self.local_epochs or self.local_steps or 1
        return client_bytes(samples, model, orders, CHUNK * self.private_examples)

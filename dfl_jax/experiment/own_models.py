"""What evaluations ask of the clients' own models, on samples that only their clients have."""

import numpy as np

from dfl_jax.base import Algorithm
from dfl_jax.experiment.datasets import Parts
from dfl_jax.experiment.description import Description
from dfl_jax.setting_error import SettingError

MEMBERSHIP = 'membership'


def check_own_models(
    experiment: Description,
    name: str,
    algorithm: Algorithm,
    parts: Parts,
    kept: Parts,
    judged: np.ndarray | None,
) -> None:
    """Raises SettingError where clients have no models of their own, and where there are no samples
    from which those that a client trained on could be told.

    Args:
      name: of the algorithm.
      parts: indices of each client's training samples.
      kept: of those that it keeps from training.
      judged: [M] bool, over whom means are taken; None for all.
    """
    share, asked = experiment.partition.validation_share, experiment.evaluation.membership
    keeps = any(map(len, kept))
    for setting, value, needed in (('validation_share', share, keeps), (MEMBERSHIP, asked, asked)):
        if needed and algorithm.predict_own is None:
            text = f'clients of {name} have no models of their own'
            raise SettingError(setting, value, text, 'leave it out')
    if not (asked and keeps):
        return
    own = kept if judged is None else [kept[client] for client in np.flatnonzero(judged)]
    if not any(map(len, own)):
        text = f'keeps no sample of the clients over which means are taken, and `{MEMBERSHIP}` none'
        raise SettingError('validation_share', share, text, 'raise it', colon=False)
    others = np.concatenate(kept)
    if shared := int(np.isin(others, np.concatenate(parts)).sum()):
        text = f'of the {len(others)} samples that clients keep, another client trains on {shared}'
        remedy = 'set `validation_share=0`, and the test samples take their place'
        raise SettingError(MEMBERSHIP, True, text, remedy)

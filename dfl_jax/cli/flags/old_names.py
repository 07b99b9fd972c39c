"""Flags that have other names or values than they had, for one more release, or are gone."""

from collections.abc import Mapping
from typing import Any

OLD_NAMES = {  # flags that were renamed; they work for one more release
    'averaged': 'round_order',
    'weight_sparsity': 'message_sparsity',
    'weight_bits': 'message_bits',
    'weight_rounding': 'message_rounding',
    'ntk_jacobian_sparsity': 'message_sparsity',
    'ntk_jacobian_bits': 'message_bits',
    'ntk_jacobian_rounding': 'message_rounding',
}
OLD_VALUES = {  # likewise
    ('round_order', 'trained'): 'train_first',
    ('round_order', 'previous'): 'parallel',
    ('ntk_jacobian_weights', 'hub'): 'averaged',
    ('ntk_jacobian_weights', 'own'): 'neighbours',
    ('spark_projection_refresh', 'hub'): 'aggregator',
}
GONE = (('client_isolation', 0.0),)  # flags that are no more, with the value that had no effect


def renewed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run by the names and values of today."""
    today = {
        name: value
        for name, value in settings.items()
        if name not in OLD_NAMES and (name, value) not in GONE
    }
    for old, new in OLD_NAMES.items():
        if settings.get(old) is not None:
            today[new] = settings[old]
    for (name, old), value in OLD_VALUES.items():
        if today.get(name) == old:
            today[name] = value
    return today

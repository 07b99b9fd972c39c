"""What clients send each other: how it is coded, tampered with, combined and counted.

Every message of every method goes through the `Exchange` of its round. A codec, an attack or a rule
of aggregation is written for one tensor or one receiver, and reaches all methods from here.
"""

from dfl_jax.exchange.aggregation import (
    RULES,
    Aggregation,
    Combining,
    aggregation_named,
    members_needed,
    takes_loss,
)
from dfl_jax.exchange.attacks import (
    ATTACKS,
    ROW_FACTORS,
    Attack,
    Messages,
    attack_named,
    tamper_named,
)
from dfl_jax.exchange.compression import (
    FLOAT_BITS,
    LABEL_BITS,
    Codec,
    Compression,
    Message,
    bits_of,
    chain,
    half_precision,
    largest,
    number_bits,
    quantization,
)
from dfl_jax.exchange.error_feedback import with_error_feedback
from dfl_jax.exchange.exchange import (
    COMBINED,
    OLD_STEP,
    SENT,
    Exchange,
    heard_messages,
    one_round,
    round_of,
)
from dfl_jax.exchange.named_rows import NamedRow, row_and_value
from dfl_jax.exchange.shared_noise import shared_noise

"""What methods and curves are called in tables, figures and reports."""

from dfl_jax import methods
from dfl_jax.results.curves import CLIENT_LOSS

EARLY = ('ntk_dfl', 'dfedavg', 'dfedavgm', 'dfedsam', 'dispfl', 'dpsgd', 'ntk_fl', 'decavg')
RECENT = (
    *('relay_sgd', 'dsgt', 'd2', 'qg_dsgdm', 'dfedprox'),
    *('choco_sgd', 'beer', 'sgp', 'epidemic', 'dfed_alt', 'dfed_admm'),
)
LATER = ('dfml', 'dec_fedavg', 'dec_heterofl', 'dec_fedrolex', 'dec_fedprox', 'def_kt', 'dec_fml')
METHOD_LABELS: dict[str, str] = {
    # A method's place is its colour in every figure, where colours come again after the last, but
    # never twice in one table.
    **{name: methods.METHODS[name].label for name in EARLY},
    'ntk_dfl_compressed': 'NTK-DFL, compressed',
    'spark_no_momentum': 'SPARK w/o momentum',
    'spark': 'SPARK',
    'spark_a': 'SPARK, projection only',
    'spark_c': 'SPARK w/o distillation',
    'spark_k530': 'SPARK, k = 530',
    'spark_never': 'SPARK, one projection',
    'spark_round': 'SPARK, one projection a round',
    'spark_k500': 'SPARK w/o momentum, k = 500',
    'spark_k750': 'SPARK w/o momentum, k = 750',
    'spark_k5000': 'SPARK w/o momentum, k = 5000',
    'spark_sampled': 'SPARK, k = 530, sampled',
    'spark_fp16': 'SPARK, k = 530, sampled, FP16',
    'spark_int8': 'SPARK, k = 530, sampled, INT8',
    'he': 'He',
    'gain': 'gain-corrected',
    'same': 'same start',
    'dec_fedavg_server': 'FedAvg with a server',
    **{name: methods.METHODS[name].label for name in LATER},
    'dfml_fixed': 'DFML, alpha = 0.5',
    'dfml_ce_fixed': 'DFML, CE, alpha = 0.5',
    'dfml_ce': 'DFML, CE',
    'dfml_ace': 'DFML, ACE',
    'dfml_client0': 'DFML, client 0 aggregates',
    'dfml_full': 'DFML, full cycles',
    'dfml_ce_anl': 'DFML, CE, ANL-KD',
    'dfml_supervision': 'DFML, supervision only',
    'dfml_ce_full': 'DFML, CE, full cycles',
    'dfml_equal': 'DFML, equal teachers',
    'dfml_k1': 'DFML, K = 1',
    'dfml_k5': 'DFML, K = 5',
    'dfml_k20': 'DFML, K = 20',
    'dfml_ce_wsl': 'DFML, CE, WSL',
    'dfml_constant_period': 'DFML, periods of 10',
    'dfml_vanilla': 'DFML, vanilla transfer',
    'dfml_ce_supervision': 'DFML, CE, alpha on supervision',
    'dfml_ce_distillation': 'DFML, CE, alpha on distillation',
    'dfml_ce_common': 'DFML, CE, alpha on both alike',
    'spark_aggregator': 'SPARK, one projection an aggregator and round',
    **{name: methods.METHODS[name].label for name in RECENT},
    'he_d': 'He',  # configuration D, a table of its own
    'gain_d': 'gain-corrected',
    'same_d': 'same start',
    'ntk_dfl_in_turn': 'NTK-DFL, clients in turn',
    'dfedavg_8': 'DFedAvg, 8 bits',
    'ntk_fl_authors': 'NTK-FL, 21 clients',
    'spark_trace': "SPARK w/o momentum, NTK-DFL's kernel",
}
CURVE_LABELS = {
    'consensus_accuracy': 'consensus model',
    'client_accuracy_mean': 'mean client',
    CLIENT_LOSS: 'test loss of the mean client',
}

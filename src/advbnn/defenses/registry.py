"""The published randomized defences by name: a new one is one file with a `PUBLISHED`, and one line here."""

from advbnn.defenses import (
    bat,
    ctrw,
    dcs,
    double_win,
    dropout,
    ig_bnn,
    learn2perturb,
    lwta,
    own,
    pni,
    resize_pad,
    rna,
    rpf,
    sap,
    wca,
)
from advbnn.defenses.published import Published

_MODULES = (ctrw, dcs, double_win, dropout, ig_bnn, learn2perturb, lwta, pni, resize_pad, rna, rpf, sap, wca)

ONE_NETWORK: dict[str, Published] = {module.PUBLISHED.name: module.PUBLISHED for module in _MODULES}
"""Those that are made from one network, and trained by `defense(name)`."""

PUBLISHED: dict[str, Published] = {
    **ONE_NETWORK,
    **{entry.name: entry for entry in (bat.PUBLISHED, own.ADV_BNN, own.RSE, own.MODES)},
    **{entry.name: entry for entry in (own.ADV, own.ADV_ADAM, own.ADV_BATCH, own.ADV_LONG, own.NONE)},
}
"""All of them, with those that have a recipe of their own, and the baselines without randomness."""

Randomized = (
    ctrw.RandomWeightInput
    | dcs.RandomTaps
    | double_win.RandomPrecision
    | dropout.MonteCarloDropout
    | ig_bnn.ParticleEnsemble
    | learn2perturb.PerturbedFeatures
    | lwta.WinnerTakesAll
    | pni.ParametricNoise
    | resize_pad.ResizeAndPad
    | rna.RandomNorms
    | rpf.RandomProjection
    | sap.ActivationPruning
    | wca.AlignedNoise
)
"""The kinds of network that a configuration can name besides the paper's own."""

"""The published randomized defences by name: a new one is one file with a `PUBLISHED`, and one line here."""

from advbnn.defenses import ctrw, dcs, double_win, dropout, learn2perturb, lwta, pni, resize_pad, rna, rpf, sap, wca
from advbnn.defenses.published import Published

PUBLISHED: dict[str, Published] = {
    module.PUBLISHED.name: module.PUBLISHED
    for module in (ctrw, dcs, double_win, dropout, learn2perturb, lwta, pni, resize_pad, rna, rpf, sap, wca)
}

Randomized = (
    ctrw.RandomWeightInput
    | dcs.RandomTaps
    | double_win.RandomPrecision
    | dropout.MonteCarloDropout
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

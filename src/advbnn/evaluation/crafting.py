"""Runs an attack that may come from elsewhere, and checks what it returns."""

from torch import Tensor, nn

from advbnn.evaluation.checks import Perturbation, check_allowed
from advbnn.modules import evaluating, without_parameter_gradients
from advbnn.randomness import seeded_globally, with_fresh_state


def craft(attack: Perturbation, model: nn.Module, x: Tensor, y: Tensor, seed: int) -> Tensor:
    """Perturbed inputs, with mode, gradients and generators as `Perturbation` promises them.

    An attack from elsewhere may use more of the model than its outputs, and sets neither mode nor seed. It gets copies,
    since one that writes into its inputs would be checked against what it wrote.
    """
    with evaluating(model), without_parameter_gradients(model), seeded_globally(seed, x.device):
        x_adv = attack(with_fresh_state(model), x.clone(), y.clone(), seed=seed)
    check_allowed(attack, x_adv, x)
    return x_adv

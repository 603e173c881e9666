"""Monte Carlo dropout (Gal & Ghahramani, ICML 2016): dropout stays on in prediction."""

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional

from advbnn.defenses.published import EVERY_PASS, PGD_20, AuthorsProtocol, Published
from advbnn.defenses.surgery import has_layer, last_linear, replaced
from advbnn.errors import within


@dataclass(frozen=True, kw_only=True)
class MonteCarloDropout:
    """Dropout before the classifier, in training and prediction."""

    kind = "mc_dropout"
    rate: float = 0.5

    def __post_init__(self) -> None:
        within("rate", self.rate, "(0, 1)", "it is the fraction of units that are dropped")

    def wrap(self, net: nn.Module) -> nn.Module:
        if has_layer(net, AlwaysDropout):
            return net
        return replaced(net, nn.Linear, lambda _, layer: nn.Sequential(AlwaysDropout(self.rate), layer), last_linear)


class AlwaysDropout(nn.Dropout):
    """x * Bernoulli(1 - p) / (1 - p), fresh for every example and pass, also in evaluation mode."""

    def forward(self, input: Tensor) -> Tensor:
        return functional.dropout(input, self.p, training=True)


PUBLISHED = Published(
    name="mc_dropout",
    title="Monte Carlo dropout",
    paper="Gal & Ghahramani, Dropout as a Bayesian Approximation: Representing Model Uncertainty in Deep Learning",
    venue="ICML 2016",
    network=MonteCarloDropout(),
    random="which units before the classifier are dropped",
    redrawn=EVERY_PASS,
    shared=False,
    trained=False,
    baseline="none",
    samples=20,
    protocol=AuthorsProtocol(PGD_20, passes=20),
    differences=(
        "no source evaluates it as a defence; the protocol is the usual one",
        "the leaderboard puts it onto a network that was trained without dropout; the paper trains with it",
    ),
)

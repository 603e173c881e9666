"""A mixture of networks, each run by its own fast engine."""

from collections.abc import Sequence

from torch import Tensor, nn

from advbnn.bayes.modes import Modes
from advbnn.bayes.protocol import HasMembers, Member, members


class AcceleratedModes(HasMembers):
    """`accelerate(Modes(...))`: chooses a mode as the mixture does, and runs its accelerated form."""

    def __init__(self, model: Modes, components: Sequence[nn.Module]) -> None:
        super().__init__()
        self.model, self.components = model, nn.ModuleList(components)
        self.training = model.training

    def forward(self, x: Tensor) -> Tensor:
        chosen = self.model if self.model.frozen_sample is not None else self.components[self.model.choose()]
        outputs: Tensor = chosen(x)
        return outputs

    @property
    def support(self) -> int:
        return self.model.support

    def members(self) -> tuple[Member, ...]:
        """The members of the mixture, each accelerated."""
        if not self.support or self.model.frozen_sample is not None:
            return ()
        pairs = zip(self.model.weights, self.components, strict=True)
        return tuple(
            Member(weight * member.weight, member.net)
            for weight, component in pairs
            for member in members(component) or (Member(1.0, component),)
        )

"""Which steps are captured as CUDA graphs, and that replaying them changes nothing."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from statistics import median

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from advbnn.attacks import PGD
from advbnn.attacks.threat import Threat
from advbnn.bayes.mean_field import bayesianize
from advbnn.bayes.priors import GaussianPrior
from advbnn.defenses.defense import Averaging, Defense
from advbnn.defenses.networks import Variational
from advbnn.defenses.objective import RobustELBO
from advbnn.defenses.optimizers import LangevinSampler
from advbnn.training import fast_step as fast_step_module
from advbnn.training.averaging import WeightAverage
from advbnn.training.fast_step import FastStep
from advbnn.training.objective import RobustLoss
from fast_steps import ATTACK, EXAMPLES, SEED, LaplacePrior, batch, fast, network, residual_network

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class FakeGraph:
    """Stands in for a CUDA graph: runs the step itself."""

    made = 0

    def __init__(self, step, x, y, state) -> None:
        self.replay, self.x = step, x
        FakeGraph.made += 1


def test_processes_with_shards_of_unequal_size_capture_at_the_same_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_step_module, "GraphedStep", FakeGraph)
    recorded = []
    for rank in range(2):
        step, made = fast(network(), Defense(), captured=True), []
        # 32 examples a batch and 31 in the last one of five epochs
        for whole in (32, 31) * 5:
            size = len(range(rank, whole, 2))
            FakeGraph.made = 0
            step(*batch(size), SEED, share=2 * size / whole)
            made.append(FakeGraph.made)
        recorded.append(made)
    assert recorded[0] == recorded[1] == [1, 0, 0, 0, 0, 0, 0, 1, 0, 0]  # the last batch at its fourth occurrence


def test_a_step_with_another_radius_is_captured_and_the_one_before_it_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fast_step_module, "GraphedStep", FakeGraph)
    step, made = fast(network(), Defense(attack=ATTACK), captured=True), []
    for eps in (0.02, 0.02, 0.05, 0.05):
        FakeGraph.made = 0
        step(*batch(), SEED, attack=replace(ATTACK, threat=replace(ATTACK.threat, eps=eps)))
        made.append(FakeGraph.made)
    assert made == [1, 0, 1, 0] and len(step._graphs) == 1


@pytest.mark.parametrize(
    ("sizes", "compiled"),
    [((16, 7, 7, 7, 7), [True, False, False, False, False]), ((7, 16, 16, 16, 16), [True, False, False, False, True])],
)
def test_whole_batches_are_compiled_also_after_resuming_at_the_last_one(
    sizes: tuple[int, ...], compiled: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []

    def look(self: FastStep, x: Tensor, y: Tensor, form: object, passes: object) -> Tensor:
        found.append(passes is self.passes)
        return torch.zeros(4)

    monkeypatch.setattr(fast_step_module, "GraphedStep", FakeGraph)
    monkeypatch.setattr(FastStep, "_step", look)
    step = fast(network(), Defense(), captured=True)
    for size in sizes:
        step(*batch(size), SEED)
    assert found == compiled


def test_weights_of_any_number_of_dimensions_are_laid_out_for_the_gpu() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv3d(3, 4, 3), nn.Linear(3, 4))
    fast_step_module._to_channels_last(net)
    assert net[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert net[1].weight.is_contiguous()


@needs_gpu
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")  # switched off here on purpose
@pytest.mark.parametrize("wrap", [bayesianize, lambda net: net], ids=["bayesian", "plain"])
@pytest.mark.parametrize(
    "options",
    [
        {"attack_mode": "eval"},
        {"attack_mode": "train"},
        {"awp": 0.01},
        {"build": residual_network},
        {"objective": RobustELBO(clean=0.5)},
        {"objective": RobustELBO(trades=6.0), "network": Variational(), "awp": 0.01},
    ],
)
def test_a_captured_step_equals_the_plain_one_for_the_same_noise(
    wrap: Callable[[nn.Module], nn.Module], options: dict
) -> None:
    if options.get("objective", RobustELBO()).trades and wrap is not bayesianize:
        pytest.skip(
            "without noise, the KL of TRADES has no gradient at the input; test_fast_step.py has a random start"
        )
    build = options.get("build", network)
    defense = Defense(attack=ATTACK, **{name: value for name, value in options.items() if name != "build"})
    # an odd batch does not fit the graph, and gets its own when it comes the fourth time
    gaps = _gaps(wrap(build()), wrap(build()), defense, sizes=(16, 16, 7, 16, 7, 16, 7, 16, 7, 7, 7))
    assert max(gaps.values()) < SAME


@needs_gpu
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")  # switched off here on purpose
@pytest.mark.parametrize("what", ["teacher", "random teacher", "prior", "langevin", "preconditioned langevin", "mixed"])
def test_every_form_is_captured_as_it_runs(what: str) -> None:
    def wrap(net: nn.Module) -> nn.Module:
        priors = {"prior": LaplacePrior(), "random teacher": GaussianPrior()}
        return bayesianize(net, prior=priors[what]) if what in priors else net

    teacher = {"averaging": Averaging(decay=0.9, consistency=2.0)}
    forms = {
        "teacher": teacher,
        "random teacher": teacher,
        "langevin": {"optimizer": LangevinSampler(lr=0.05, temperature=0.0)},
        # it stops adapting in the middle
        "preconditioned langevin": {
            "optimizer": LangevinSampler(lr=0.001, temperature=0.0, preconditioned=True, burn_in=4)
        },
    }
    defense = Defense(attack=ATTACK, **forms.get(what, {}))
    # until another form, such as that with a teacher, is captured, and some more
    gaps = _gaps(wrap(network()), wrap(network()), defense, sizes=(16,) * 9, what=what, compiled=False)
    assert max(gaps.values()) < SAME


SAME = 1e-3
"""Of a step: rounding makes 1e-6 of it on a CPU, and another form of the step or other noise 2e-2 or more."""


def _gaps(
    model: nn.Module, twin: nn.Module, defense: Defense, sizes: tuple[int, ...], what: str = "", compiled: bool = True
) -> dict[int, float]:
    """How far captured steps end from plain ones, relative to the step: the median of several, by batch size.

    Each begins at the same weights. The median, as rounding may take any of them across a kink, where a gradient of the
    attack changes its sign, and such a step differs by up to a tenth.
    """
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    model, twin = (net.cuda().train() for net in (model, twin))
    prior = GaussianPrior() if "langevin" in what else None
    captured, plain = fast(model, defense, prior, captured=True, compiled=compiled), fast(twin, defense, prior)
    average = WeightAverage(twin, decay=0.9)
    gaps = defaultdict(list)
    for i, n in enumerate(sizes):
        x, y = (t.cuda() for t in batch(n))
        y = functional.one_hot(y, 10) * 0.9 + 0.01 if what == "mixed" else y
        teacher = average if "teacher" in what and i else None
        start = [_numbers(twin.parameters()), _numbers(twin.buffers()), torch.zeros(3)]
        ends = []
        for step, net in ((captured, model), (plain, twin)):
            record = step(x, y, SEED + i, teacher=teacher, measure_clean=True)
            found = torch.stack([torch.as_tensor(v) for v in (record.loss, record.nll, record.clean_score)]).cpu()
            ends.append([_numbers(net.parameters()), _numbers(net.buffers()), found])
        distances = [(a - b).norm() / (b - s).norm() for a, b, s in zip(*ends, start, strict=True)]
        gaps[n].append(torch.stack(distances).max().item())
        assert math.isfinite(gaps[n][-1])
        average.update(twin)
        _copy(plain, captured)
    return {n: median(found) for n, found in gaps.items()}


def _numbers(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().double().flatten().cpu() for tensor in tensors])


@torch.no_grad()
def _copy(source: FastStep, target: FastStep) -> None:
    """The weights and the state of the optimizer, into the tensors that a graph was captured with."""
    target.loss.model.load_state_dict(source.loss.model.state_dict())
    for theirs, mine in zip(source.parameters, target.parameters, strict=True):
        for name, value in source.optimizer.state[theirs].items():
            if isinstance(value, Tensor):
                target.optimizer.state[mine][name].copy_(value)


@needs_gpu
def test_the_step_that_is_captured_has_the_noise_of_its_seed() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).cuda()
    loss = RobustLoss(model, RobustELBO(), EXAMPLES)
    defense = Defense(attack=PGD(Threat("linf", 0.3), steps=1, step_size=0.01))
    step = FastStep(loss, torch.optim.SGD(loss.parameters(), lr=0.0), defense, compiled=False)
    x, y = (t.cuda() for t in batch())
    before = torch.cuda.get_rng_state()
    recorded, replayed, other = (step(x, y, seed).nll for seed in (SEED, SEED, SEED + 1))
    assert recorded == replayed != other
    assert torch.equal(torch.cuda.get_rng_state(), before)


@needs_gpu
def test_capturing_leaves_no_trace_of_its_warm_up() -> None:
    model = bayesianize(network()).cuda().train()
    loss = RobustLoss(model, RobustELBO(), EXAMPLES)
    optimizer = torch.optim.Adam(loss.parameters(), lr=0.0)
    step = FastStep(loss, optimizer, Defense(attack=ATTACK))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    x, y = (t.cuda() for t in batch())
    step(x, y, SEED)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert all(state["step"] == 1 for state in optimizer.state.values())
    assert model.net.features[1].num_batches_tracked == 1

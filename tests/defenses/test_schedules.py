import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advbnn.defenses.schedules import Constant, Cosine, OneCycle, Stages, kl_factor


def test_stages_of_the_authors_code() -> None:
    schedule = Stages()
    assert schedule.total_epochs == 200
    at = {0: 1.0, 79.99: 1.0, 80: 0.1, 139: 0.1, 140: 0.01, 180: 0.001, 199: 0.001}
    assert {epoch: pytest.approx(schedule.scale(epoch)) for epoch in at} == at
    assert [epoch for epoch in range(200) if schedule.restarts(epoch)] == [80, 140, 180]
    assert not any(Stages(fresh_optimizer=False).restarts(epoch) for epoch in range(200))


def test_reference_values() -> None:
    cosine = Cosine(epochs=10, warmup=2.0, final=0.1)
    assert [cosine.scale(epoch) for epoch in (0, 1, 2, 6, 10)] == pytest.approx([0, 0.5, 1, 0.55, 0.1])
    cycle = OneCycle(epochs=10, rise=0.4, start=0.2, final=0.0)
    assert [cycle.scale(epoch) for epoch in (0, 2, 4, 7, 10)] == pytest.approx([0.2, 0.6, 1, 0.5, 0])
    assert Constant(epochs=3).scale(2.9) == 1 and Constant(epochs=3).total_epochs == 3


@given(
    st.floats(0, 20),
    st.sampled_from([Constant(epochs=20), Stages(epochs=(5, 15)), Cosine(epochs=20), OneCycle(epochs=20)]),
)
def test_learning_rate_never_exceeds_its_peak(epoch: float, schedule: Constant | Stages | Cosine | OneCycle) -> None:
    assert schedule.total_epochs == 20
    assert 0 <= schedule.scale(epoch) <= 1


@pytest.mark.parametrize("steps", [1, 3, 391, 5000])
def test_blundell_weights(steps: int) -> None:
    factors = [kl_factor("blundell", epoch=7, step=step, steps=steps) for step in range(steps)]
    assert math.fsum(factors) / steps == pytest.approx(1)  # the KL counts once per epoch
    if steps == 3:
        assert factors == pytest.approx([3 * 4 / 7, 3 * 2 / 7, 3 * 1 / 7])


def test_linear_warmup_ends_at_one() -> None:
    factors = [kl_factor("linear", epoch=e, step=s, steps=4, epochs=2.0) for e in range(3) for s in range(4)]
    assert factors == pytest.approx([1 / 8, 2 / 8, 3 / 8, 4 / 8, 5 / 8, 6 / 8, 7 / 8, 1, 1, 1, 1, 1])
    assert kl_factor("constant", epoch=0, step=0, steps=4) == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Stages(epochs=()), "stages.*at least one"),
        (lambda: Stages(epochs=(3, 0)), "epochs .*0"),
        (lambda: Stages(factor=0.0), "factor .*0.0"),
        (lambda: Constant(epochs=1.5), "epochs .*1.5"),
        (lambda: Cosine(epochs=5, warmup=5.0), "warmup .*epochs=5"),
        (lambda: Cosine(final=-1.0), "final .*-1"),
        (lambda: OneCycle(start=math.nan), "start .*nan"),
        (lambda: Constant(epochs=10**22), "epochs .*1,000,000"),
        (lambda: OneCycle(rise=1.0), "rise .*1.0"),
        (lambda: kl_factor("liner", epoch=0, step=0, steps=1), "did you mean 'linear'"),
    ],
)
def test_bad_input(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]

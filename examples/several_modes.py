"""Three networks as one posterior with three modes, compared with each of them on the same images."""

import os

import advbnn
from advbnn.evaluation.comparison import compare

SHORT = bool(os.environ.get("ADVBNN_EXAMPLE"))
ROWS = range(100 if SHORT else 500)  # the test images that are used

data = advbnn.data.load("digits")
how = advbnn.defense("adv", "digits", architecture="mlp", schedule={"epochs": 1 if SHORT else 10})
nets = []
for seed in range(3):  # or load three checkpoints into three networks
    net = how.build(classes=10, shape=data.train.shape, seed=seed)
    nets.append(advbnn.fit(net, data, how, seed=seed).model)
modes = advbnn.Modes(nets)

attack = {"PGD-20": advbnn.attacks.PGD(advbnn.Threat("linf", 0.1), steps=20, eot=3)}
together = advbnn.evaluate(modes, data.test, attack, rows=ROWS, seeds=1, label="three modes")
for number, net in enumerate(nets):
    alone = advbnn.evaluate(net, data.test, attack, rows=ROWS, seeds=1, label=f"mode {number}")
    print(*compare(together, alone))  # with a paired interval

prediction = advbnn.predict(modes, data.test.images[:5] / 255)
print(prediction)  # exact: all modes, with their weights

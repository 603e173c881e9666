"""A network of your own becomes Bayesian, trains on adversarial examples, and is audited."""

import os

from torch import nn

import advbnn

SHORT = bool(os.environ.get("ADVBNN_EXAMPLE"))
ROWS = range(10 if SHORT else 200)  # the test images that are used

data = advbnn.data.load("digits")
net = nn.Sequential(  # any module that returns logits, of images in [0, 1]
    nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 16, 10)
)
threat = advbnn.Threat("linf", 0.1)

# all numbers of the defence have defaults; these are changed
how = advbnn.defense(
    "adv_bnn", "digits", attack={"threat": {"eps": threat.eps}, "steps": 5}, schedule={"epochs": 1 if SHORT else 20}
)
result = advbnn.fit(net, data, how, seed=0)  # out="runs/mine" keeps it; progress=True shows it
print(result)

records = advbnn.evaluate(
    result.model,
    data.test,
    {"clean": None, "PGD-20": advbnn.attacks.PGD(threat, steps=20, eot=5)},
    rows=ROWS,
    seeds=1,
    label="mine",
)
print(records)

found = advbnn.audit(result.model, data.test, threat, "quick", rows=ROWS, samples=5, label="mine")
print(found)

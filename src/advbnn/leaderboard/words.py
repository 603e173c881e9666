"""What entries say, in words for readers: networks, randomness and settings of attacks."""

import re
from collections.abc import Mapping
from typing import Any

from advbnn.leaderboard.entry import KINDS, Entry
from advbnn.report.select import radius_words

_NETWORK = re.compile(r"(preact[_-]?)?(resnet|vgg|wrn)[_-]?(\d[\d-]*)", re.IGNORECASE)
_SPELLED = {"resnet": "ResNet", "vgg": "VGG", "wrn": "WRN"}

_SETTINGS = {
    "eot": "EOT samples",
    "step_size": "step",
    "passes": "forward passes",
    "redrawn": "drawn anew",
    "predicted_labels": "away from the prediction",
    "sha256": "SHA-256",
}
"""Settings that are called otherwise than in Python."""


def network_words(architecture: str) -> str:
    """A known network as papers spell it: `"ResNet-18"` for `"resnet18"`."""
    found = _NETWORK.fullmatch(architecture.strip())
    if found is None:
        return architecture
    return f"{'PreAct' if found[1] else ''}{_SPELLED[found[2].lower()]}-{found[3]}"


def randomness_words(entry: Entry) -> str:
    """What is random, when it is drawn anew, and which images share a draw."""
    if entry.kind == KINDS[2]:
        return entry.random
    shared = {None: "", True: ", one draw for a whole batch", False: ", another draw for each image"}[entry.shared]
    return f"{entry.random}; drawn anew: {entry.redrawn}{shared}"


def settings_words(settings: Mapping[str, Any]) -> str:
    """The settings of an attack, such as `"PGD, EOT samples 20, step 2/255, no random start"`."""
    named = {name: value for name, value in settings.items() if name != "name"}
    # the protocol of a source is its attack, and how that is scored
    title = [] if isinstance(settings.get("attack"), Mapping) else [str(settings["name"])] if "name" in settings else []
    return ", ".join(filter(None, [*title, *(_setting(name, value) for name, value in named.items())]))


def _setting(name: str, value: Any) -> str:
    words = _SETTINGS.get(name, name.replace("_", " "))
    if (name, value) == ("redrawn", "never"):  # as nothing is random
        return ""
    if name == "threat" and isinstance(value, Mapping) and {"norm", "eps"} <= set(value):
        return f"{value['norm']} {radius_words(value['eps'])}"
    if isinstance(value, Mapping):
        return settings_words(value) if name == "attack" else f"{words} ({settings_words(value)})"
    if isinstance(value, bool):
        return words if value else f"no {words}"
    return f"{words} {_value(value)}"


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(map(_value, value))
    return radius_words(value) if isinstance(value, float) else str(value)

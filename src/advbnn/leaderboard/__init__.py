"""The leaderboard of randomized defences: entries as JSON files, how they are measured, and the page made from them.

`entry` is the schema, `measure` runs the measurements of a defence, `from_records` makes its entry, `page` writes the
page. docs/leaderboard.md says how to submit.
"""

from typing import TYPE_CHECKING

from advbnn.lazy import submodules

if not TYPE_CHECKING:  # type checkers know the submodules
    __getattr__ = submodules(__name__)

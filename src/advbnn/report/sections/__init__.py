"""The sections of a report: a function each, which returns None if nothing was measured for it."""

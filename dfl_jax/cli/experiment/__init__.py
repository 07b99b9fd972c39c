"""From flags to the objects of a run, for all commands."""

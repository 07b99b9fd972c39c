"""Absl flags, which are derived from the settings of an experiment and of its method."""

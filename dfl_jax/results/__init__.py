"""Finished runs as numbers: their rows, the metrics of a run, intervals over seeds."""

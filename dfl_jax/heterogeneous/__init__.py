"""Clients of different architectures: populations, aggregation, sub-models, mutual learning."""

"""Deliberate faults that the suite has to catch, and a script that tries them."""

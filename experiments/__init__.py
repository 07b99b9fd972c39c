"""The command line: one run, the papers' tables, and the plots."""

"""Sweeps on other machines: one file an engine, and what all of them share.

`options` checks the flags, `task` is what a worker gets and does, `supervise` hands the groups out
and counts rounds; `files` takes files from a worker to the head, for engines without a shared disk.
"""

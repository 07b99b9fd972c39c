"""Runs the commands as the world mistreats them: `python -m tests.torture`, docs/reliability.md.

One module a part; `forkserver`, `processes`, `runs` and `verdict` are what the parts share.
"""

"""What a table or a figure of one of the four papers asks for, a package a command.

Nothing outside of this package imports it: `dfl-jax tables`, `select`, `theory`, `reconstruct`.
"""

"""The command line: one package a command, and `experiment`, which turns flags into objects."""

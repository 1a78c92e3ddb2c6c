"""The command line: one file per command; `main.py` turns errors into a line and a status."""

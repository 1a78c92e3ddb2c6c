"""Checkpoints on disk: find or fetch, open, check, read, convert. The door is `open.py`."""

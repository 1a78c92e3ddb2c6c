"""The contract as a command: replay requests under many settings, report the first bit that moved."""

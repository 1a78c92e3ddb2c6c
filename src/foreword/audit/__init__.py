"""The contract as a command: replay requests under many settings, name the first bit that moved."""

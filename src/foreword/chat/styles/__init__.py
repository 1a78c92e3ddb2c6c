"""The ways models write tool calls, one file each; a file's name is its name as an option."""

"""The commands, one a file. Importing them imports nothing heavy."""

"""The commands that run a language model, one a file. Importing them imports nothing heavy."""

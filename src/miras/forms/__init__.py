"""The two ways to run a spec: recurrent, the specification, and chunk, in parallel."""

"""Parts of the chain driver: what is to be run, what has happened, which chains are sound, and Ctrl-C."""

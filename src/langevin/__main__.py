"""`python -m langevin` is the command `langevin`."""

from langevin.cli.main import main

if __name__ == "__main__":
    main()

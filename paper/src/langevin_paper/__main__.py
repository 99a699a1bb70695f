"""`python -m langevin` is the command `langevin`."""

from langevin_paper.cli import main

if __name__ == "__main__":
    main()

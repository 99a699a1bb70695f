"""`python -m langevin_paper` is the command `langevin-paper`."""

from langevin_paper.cli import main

if __name__ == "__main__":
    main()

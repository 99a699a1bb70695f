"""One file of numbers for each experiment of the paper: settings, which are the paper's, and what it published."""

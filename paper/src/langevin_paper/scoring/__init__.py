"""Tables, rivals and measures of the experiments `scoring` and `scoring-classes`."""

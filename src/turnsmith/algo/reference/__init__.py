"""Losses and KL that train nothing: training uses verl's. For reading, tests and analysis; they agree with verl's."""

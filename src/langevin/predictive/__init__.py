"""What draws say of new data: predictions averaged over them, and the log-likelihood of each."""

from langevin.predictive.average import log_likelihood, predict

__all__ = ["log_likelihood", "predict"]

"""What draws say of new data: predictions averaged over them, and the log-likelihood of each."""

from langevin.predictive.average import Predictor, log_likelihood, predict

__all__ = ["Predictor", "log_likelihood", "predict"]

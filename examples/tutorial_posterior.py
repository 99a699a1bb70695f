"""Tutorial: a posterior that is no Gaussian, by one call, beside its exact value.

    python examples/tutorial_posterior.py [--quick]

The data are those of Racine et al. (1986): four doses of a poison, five animals each, how many died. The model is logistic,
death ~ Binomial(5, sigmoid(alpha + beta dose)). With 20 animals its posterior is skewed, and has two parameters only, so a grid
gives the exact answer.
"""

import argparse

import torch
from torch.distributions import Binomial, Normal

import langevin as lv

parser = argparse.ArgumentParser()
parser.add_argument("--quick", action="store_true", help="fewer draws")
num_draws = 400 if parser.parse_args().quick else 2000

dose = torch.tensor([-0.86, -0.30, -0.05, 0.73], dtype=torch.float64)
animals, deaths = torch.full((4,), 5.0, dtype=torch.float64), torch.tensor([0.0, 1.0, 3.0, 5.0], dtype=torch.float64)
prior = {"alpha": Normal(0.0, 2.0), "beta": Normal(10.0, 10.0)}


def log_likelihood(p, dose, animals, deaths):
    """Return one number per row; the library adds the priors, and differentiates."""
    return Binomial(animals, logits=p["alpha"] + p["beta"] * dose, validate_args=False).log_prob(deaths)


# 1. The model: a function, names with the values that they may take, priors. beta is positive: more poison, more deaths.
model = lv.Model(log_likelihood, parameters={"alpha": lv.real(), "beta": lv.positive()}, prior=prior)

# 2. The call. Starts, scale and step size are found, and printed.
samples = lv.sample(model, data=(dose, animals, deaths), num_draws=num_draws)

# 3. May they be trusted? Every check has a number; warnings come in words, unasked.
print(samples.trust)

# 4. The answer, by name. The dose at which half of the animals die is a function of the draws.
print(samples.summary())
half = -samples["alpha"] / samples["beta"]

# 5. The exact answer, on a grid: two parameters allow that. The Normal prior on a positive parameter is cut off at 0.
alpha, beta = torch.linspace(-8, 10, 901, dtype=torch.float64), torch.linspace(0.0, 60.0, 1501, dtype=torch.float64)[1:]
grid = {"alpha": alpha[:, None, None], "beta": beta[:, None]}
log_density = log_likelihood(grid, dose, animals, deaths).sum(-1)
log_density += prior["alpha"].log_prob(alpha)[:, None] + prior["beta"].log_prob(beta)
weight = (log_density - log_density.max()).exp()
weight /= weight.sum()


def exact(values):
    """Return mean and standard deviation of a function on the grid."""
    mean = (weight * values).sum()
    return mean, (weight * (values - mean) ** 2).sum().sqrt()


print(f"\n{'':14}{'exact':>18}{'draws':>18}")
for name, drawn, values in (
    ("alpha", samples["alpha"], alpha[:, None]),
    ("beta", samples["beta"], beta),
    ("half of them", half, -alpha[:, None] / beta),
):
    mean, sd = exact(values)
    print(f"{name:14}{mean:9.3f} ± {sd:6.3f}{drawn.mean():9.3f} ± {drawn.std():6.3f}")
skewness = ((samples["beta"] - samples["beta"].mean()) ** 3).mean() / samples["beta"].std() ** 3
print(f"skewness of beta {skewness:.2f}: no Gaussian, for which it is 0")

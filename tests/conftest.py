import matplotlib
import torch
from hypothesis import HealthCheck, settings

matplotlib.use("agg")
torch.set_num_threads(1)  # the suite runs in two worker processes

# Examples are drawn the same way in every run: a failure is reproducible, and no run is luckier than another.
settings.register_profile(
    "farfield", max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("farfield")

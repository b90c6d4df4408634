"""Gray-Scott reaction and diffusion in two dimensions: the concentrations U and V."""

FIELDS = ("U", "V")
DIFFUSION_U, DIFFUSION_V, FEED_RATE, KILL_RATE = 0.2, 0.1, 0.035, 0.06  # the paper's

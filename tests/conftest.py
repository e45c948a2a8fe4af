"""What holds for every test."""

from hypothesis import settings

# the same examples on every run, and no deadline: machines that run tests are often busy
settings.register_profile("pretune", deadline=None, derandomize=True)
settings.load_profile("pretune")

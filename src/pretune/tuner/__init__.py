"""Floor 3: decide what to try, run it within a budget, and say what is best."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

"""Floor 2: predict what was never run, from physics and from the trials of other platforms."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

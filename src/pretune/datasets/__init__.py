"""Floor 1: what a trial is, and where trials live. Loaded on first use: training processes import this."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

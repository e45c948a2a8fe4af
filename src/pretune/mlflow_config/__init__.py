"""Tracking: the experiment layout, the surrogate as an MLflow model, and the server's settings."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

"""Foreign history as trials: one file per format, behind one interface."""

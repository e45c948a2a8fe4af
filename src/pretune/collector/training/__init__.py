"""What a trial trains, one file per kind of engine; only where torch is."""

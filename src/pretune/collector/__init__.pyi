from .counters import CounterProvider as CounterProvider
from .counters import all_providers as all_providers
from .recorder import TrialRecorder as TrialRecorder

from .datasets import Knobs as Knobs
from .datasets import ModelSpec as ModelSpec
from .datasets import Platform as Platform
from .datasets import Trial as Trial
from .datasets import TrialStore as TrialStore
from .datasets import Workload as Workload
from .model import Surrogate as Surrogate

__version__: str

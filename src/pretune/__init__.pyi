from .datasets import Knobs as Knobs
from .datasets import ModelSpec as ModelSpec
from .datasets import Platform as Platform
from .datasets import Trial as Trial
from .datasets import TrialStore as TrialStore
from .datasets import Workload as Workload
from .model import Surrogate as Surrogate
from .tuner import Space as Space
from .tuner import Tuner as Tuner
from .tuner import tune_function as tune_function

__version__: str

from .answer import Answer as Answer
from .campaign import Campaign as Campaign
from .job import JobSpec as JobSpec
from .session import TuningSession as TuningSession
from .space import Candidates as Candidates
from .space import Space as Space
from .tuner import Proposal as Proposal
from .tuner import Tuner as Tuner

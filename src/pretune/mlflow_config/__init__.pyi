from .base import Tracker as Tracker
from .none import NoTracker as NoTracker
from .settings import tracker as tracker
from .settings import ui_command as ui_command
from .sync import sync as sync

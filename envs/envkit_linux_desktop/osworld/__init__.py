"""Play tasks in OSWorld's format: read the files, list those that cannot be played, and grade.

`import_tasks(folder)` sorts task files into `tasks` and `refused`, each with a reason. A
`FileFolder` holds the documents that they refer to by address. `Play` runs the steps of a task in a
session and grades its final files.
"""

from envkit_linux_desktop.osworld.files import FileFolder
from envkit_linux_desktop.osworld.playing import Desk, Finished, Play
from envkit_linux_desktop.osworld.programs import DEFAULT_APPLICATIONS, Application
from envkit_linux_desktop.osworld.refusal import Refusal, RefusalKind, RefusedError
from envkit_linux_desktop.osworld.task_file import Imported, OsworldTask, import_tasks, read_task

__all__ = [
    "DEFAULT_APPLICATIONS",
    "Application",
    "Desk",
    "FileFolder",
    "Finished",
    "Imported",
    "OsworldTask",
    "Play",
    "Refusal",
    "RefusalKind",
    "RefusedError",
    "import_tasks",
    "read_task",
]

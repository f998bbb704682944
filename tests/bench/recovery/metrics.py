"""The metrics file of a run, as it grows."""

import json
import time


class Metrics:
    def __init__(self, path):
        self.path, self.file, self.part = path, None, ''

    def next(self):
        """The next record, with the time at which it was seen; None: it has not come yet."""
        if self.file is None and self.path.exists():
            self.file = open(self.path)
        self.part += self.file.readline() if self.file else ''
        if not self.part.endswith('\n'):
            return None
        record, self.part = json.loads(self.part), ''
        return time.monotonic(), record
